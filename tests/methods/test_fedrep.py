"""FedRep: the head on the received body, then the body under that head."""

from __future__ import annotations

import pytest
import torch
from toy import Normed, assert_same, head_step, one_round, several, skewed, slope, task_of, two_clients, watching

from headway.base.tree import Tree
from headway.core.local import Batch, Local
from headway.methods import recipe as parse
from headway.training import rounds
from headway.training.step_counts import batch_plan


def test_a_round_by_hand() -> None:
    # first W under u = 1, then u under the new W
    server, reports, engine = one_round("fedrep", two_clients(start=1.0))
    us = []
    for k, (xs, y) in enumerate([([2.0], 0), ([1.0, 2.0], 1)]):
        a = 1 - 0.1 * head_step(1.0, 1.0, xs, y)
        us.append(1 - 0.1 * slope(1.0, xs, y, scale=a))
        assert engine.store.get(k).personal["head.weight"].flatten().tolist() == pytest.approx([a, -a], rel=1e-6)
    assert [float(r.w["body.u"]) for r in reports] == pytest.approx(us, rel=1e-6)
    assert float(server.w["body.u"]) == pytest.approx(us[0] / 3 + 2 * us[1] / 3, rel=1e-6)


def test_epochs_of_the_two_phases_by_hand() -> None:
    _, reports, engine = one_round("fedrep(head_epochs=3,body_epochs=2)", two_clients(start=1.0))
    a, u = 1.0, 1.0
    for _ in range(3):
        a -= 0.1 * head_step(1.0, a, [2.0], 0)
    for _ in range(2):
        u -= 0.1 * slope(u, [2.0], 0, scale=a)
    assert float(engine.store.get(0).personal["head.weight"][0]) == pytest.approx(a, rel=1e-5)
    assert float(reports[0].w["body.u"]) == pytest.approx(u, rel=1e-5)
    assert reports[0].steps == 5


@pytest.mark.parametrize(
    ("text", "epochs"),
    [("fedrep", [4, 4]), ("fedrep(head_epochs=10)", [10, 4]), ("fedrep(body_epochs=1)", [4, 1])],
)
def test_both_phases_take_the_tasks_epochs_unless_told(text: str, epochs: list[int]) -> None:
    assert [phase.epochs for phase in parse(text).phases(4)] == epochs


def trail(recipe: str = "fedrep(head_epochs=2,body_epochs=2)") -> list[tuple[Tree, Tree]]:
    """Parameters and running statistics before every step of one client with BatchNorm."""
    seen: list[tuple[Tree, Tree]] = []

    def look(batch: Batch, local: Local) -> None:
        seen.append((local.net.params().copy(), local.net.stats()))

    x = [[1.0, 0.0], [3.0, 2.0], [0.0, 1.0], [4.0, 5.0]]
    task = task_of(x, [0, 1, 0, 1], [[0, 1, 2, 3]], body=Normed, momentum=0.9, weight_decay=0.1)
    one_round(watching(look, recipe), task)
    return seen


def test_phase_one_leaves_the_extractor_and_its_statistics_unchanged() -> None:
    before, _, after, _ = trail()  # head, head, body, body
    body = lambda name: name.startswith("body.")  # noqa: E731
    assert_same(after[0].only(body), before[0].only(body))
    assert not torch.equal(after[0]["head.weight"], before[0]["head.weight"])
    first = {"body.bn.running_mean": [0.0, 0.0], "body.bn.running_var": [1.0, 1.0]}
    assert {k: v.tolist() for k, v in trail()[1][1].items()} == first


def test_phase_two_leaves_the_head_unchanged() -> None:
    _, _, before, after = trail()
    assert torch.equal(after[0]["head.weight"], before[0]["head.weight"])
    assert torch.equal(after[0]["head.bias"], before[0]["head.bias"])
    assert not torch.equal(after[0]["body.fc.weight"], before[0]["body.fc.weight"])


def test_statistics_move_in_phase_two_only() -> None:
    # the two epochs of phase two, momentum 0.1: 1 - 0.9^2 of the batch mean where the weights hardly move
    x = [[1.0, 0.0], [3.0, 2.0], [0.0, 1.0], [4.0, 5.0]]
    task = task_of(x, [0, 1, 0, 1], [[0, 1, 2, 3]], body=Normed, lr=1e-9)
    _, (report,), _ = one_round("fedrep(head_epochs=7,body_epochs=2)", task)
    mean = (torch.tensor(x) @ torch.tensor([[1.0, 0.5], [-0.5, 1.0]]).T).mean(0)
    assert torch.allclose(report.stats["body.bn.running_mean"], 0.19 * mean, rtol=1e-5)


def test_momentum_of_the_head_does_not_reach_the_body() -> None:
    # the optimiser is built anew between the phases: the body's first step has no inertia
    _, reports, engine = one_round("fedrep(head_epochs=3,body_epochs=1)", two_clients(start=1.0, momentum=0.9))
    a = float(engine.store.get(0).personal["head.weight"][0])
    assert float(reports[0].w["body.u"]) == pytest.approx(1 - 0.1 * slope(1.0, [2.0], 0, scale=a), rel=1e-5)


def test_the_head_is_never_sent_and_is_retained() -> None:
    task = skewed(3, train_size=90)
    first = task.first_params(parse("fedrep"))
    server, reports, engine = one_round("fedrep", task)
    held = engine.store.get(0).personal["head.weight"]
    assert all(name.startswith("body.") for r in reports for name in r.w)
    assert torch.equal(server.w["head.weight"], first["head.weight"])
    starts: list[torch.Tensor] = []
    recipe = watching(lambda batch, local: starts.append(local.net.head.weight.detach().clone()), "fedrep")
    one_round(recipe, task, server, engine)
    assert torch.equal(starts[0], held)


def test_steps_count_both_phases() -> None:
    task = skewed(1, partition="iid", train_size=64, batch_size=16, epochs=2)
    recipe = parse("fedrep(head_epochs=3)")
    plans = [batch_plan(task, task.net(recipe), phase, 64).steps for phase in recipe.phases(2)]
    assert plans == [12, 8]
    assert one_round(recipe, task)[1][0].steps == 20


def test_the_personal_model_is_the_received_one() -> None:
    task = skewed(2, train_size=40)
    assert rounds.personal_phases(parse("fedrep"), task) == []
    assert several("fedrep", task, 1)[1].store.ids() == [0, 1]


def test_weight_decay_and_momentum_leave_a_resting_body_alone() -> None:
    # fedrep's head phase: the body is absent from the optimiser, not merely without a gradient
    seen: list[torch.Tensor] = []
    recipe = watching(
        lambda batch, local: seen.append(local.net.body.fc1.weight.detach().clone()),
        "fedrep(head_epochs=3,body_epochs=2)",
    )
    task = skewed(1, partition="iid", train_size=60, batch_size=20, momentum=0.9, weight_decay=1.0, lr=0.01)
    one_round(recipe, task)
    first = task.first_params(parse("fedrep"))["body.fc1.weight"]
    assert len(seen) == 15
    assert all(torch.equal(w, first) for w in seen[:10])  # nine steps of the head, and the start of the body's phase
    assert not torch.equal(seen[10], first)
