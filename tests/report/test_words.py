"""What the page says in words: who acts where, over how many a test is, why a curve is missing."""

import json

import pytest
from report_runs import write_run
from test_page import comparison, read


def test_the_page_opens_with_who_acts_where(tmp_path):
    root = comparison(tmp_path)
    write_run(root / "prox", "fedavg+prox(mu=0.5)", label="near")
    text = read([root]).text
    opening = text[text.index("Recipes: who acts where") : text.index("Stage by stage, and what travels")]
    assert opening.index("scaffold") < opening.index("fedavg")  # in the order of the leaderboard
    assert "near fedavg + prox(mu=0.5)" in opening  # a name of its own hides its pieces
    assert "prox : added to the loss" in opening
    assert "correction of the gradient, what else is sent up, what the server learns, the server's step" in opening
    stages = text[text.index("Stage by stage") : text.index("Leaderboard", text.index("Stage by stage"))]
    assert "correct correction of the gradient scaffold" in stages
    assert "sent down body, head.weight, head.bias, scaffold.c" in stages


def test_a_recipe_under_several_settings_is_told_once(tmp_path):
    for i, lr in enumerate((0.1, 0.2, 0.4)):
        write_run(tmp_path / str(i), "scaffold", lr=lr)
    text = read([tmp_path]).text
    opening = text[text.index("Recipes: who acts where") : text.index("Stage by stage")]
    assert "scaffold under 3 settings" in opening
    assert opening.count("correction of the gradient") == 1


@pytest.mark.parametrize(
    ("seeds", "wanted", "gain"),
    [
        (1, "Wilcoxon over 6 clients,", "6 of 6 clients gain, 0 lose"),
        (3, "Wilcoxon over 18 pairs of client and seed,", "18 of 18 pairs of client and seed gain, 0 lose"),
    ],
)
def test_clients_under_several_seeds_are_counted_as_pairs(tmp_path, seeds, wanted, gain):
    shape = {"counts": [[2, 2]] * 6}
    for seed in range(seeds):
        write_run(tmp_path / f"a{seed}", "fedavg", seed, personal=[0.1] * 6, **shape)
        write_run(tmp_path / f"b{seed}", "moon", seed, personal=[0.2 + k / 20 for k in range(6)], **shape)
    text = read([tmp_path]).text
    assert wanted in text
    assert gain in text
    assert ("recipe pairs of client and seed mean" in text) == (seeds > 1)


def test_a_chart_says_why_a_recipe_is_missing_from_it(tmp_path):
    write_run(tmp_path / "a", "fedavg")
    write_run(tmp_path / "b", "scaffold", loss=None, failed="the loss is not finite from round 1 on")
    write_run(tmp_path / "c", "moon", accs=(None, None), finished=False)
    lonely = write_run(tmp_path / "d", "local", accs=(None, None))
    rows = [json.loads(row) | {"personal_acc": 0.5} for row in (lonely / "metrics.jsonl").read_text().splitlines()]
    (lonely / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = read([tmp_path]).text
    assert "Not drawn, as the loss was never a finite number: scaffold." in text
    assert "Not drawn, as there is no global model: local." in text
    assert text.count("Not drawn, as no round was evaluated: moon.") == 2  # global and personal accuracy
    assert "Without such a model" not in text
