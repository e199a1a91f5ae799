"""Recipes and data behind the results: which piece acts at which stage."""

from __future__ import annotations

from report_pages import comparison, read
from report_runs import write_run


def test_the_page_opens_with_who_acts_where(tmp_path):
    root = comparison(tmp_path)
    write_run(root / "prox", "fedavg+prox(mu=0.5)", label="near")
    text = read([root]).text
    recipes = text[text.index("Recipes: who acts where") : text.index("Stage by stage, and what is sent")]
    assert recipes.index("scaffold") < recipes.index("fedavg")  # in the order of the leaderboard
    assert "near fedavg + prox(mu=0.5)" in recipes  # a name of its own hides its pieces
    assert "prox : step sizes, added to the loss" in recipes
    assert (
        "correction of the gradient, what is sent up beside the model, what the server learns, the server's step"
        in recipes
    )
    stages = text[text.index("Stage by stage") : text.index("Leaderboard", text.index("Stage by stage"))]
    assert "correct correction of the gradient scaffold" in stages
    assert "sent down body, head.weight, head.bias, scaffold.c" in stages


def test_a_recipe_under_several_settings_is_told_once(tmp_path):
    for i, lr in enumerate((0.1, 0.2, 0.4)):
        write_run(tmp_path / str(i), "scaffold", lr=lr)
    text = read([tmp_path]).text
    recipes = text[text.index("Recipes: who acts where") : text.index("Stage by stage")]
    assert "scaffold under 3 settings" in recipes
    assert recipes.count("correction of the gradient") == 1
