"""FedETF's Algorithm 2: which tensors move in which stage, and by which loss."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import toy
from torch.nn import functional as F
from toy import Normed, assert_same, several, skewed, task_of

from headway.base.errors import RecipeError
from headway.core.phase import Step
from headway.methods import recipe as parse
from headway.training import rounds
from headway.training.client import first_client, personal_net
from headway.training.loop import set_mode

BODY, PROJ, BETA, V = "body", "proj", "beta", "V"


def part(name: str) -> str:
    if name.startswith("body."):
        return BODY
    return {"head.scale": BETA, "head.weight": V}.get(name, PROJ)


def tuned(text: str, task, n: int = 1, k: int = 0):
    """[(stage, net)] of client k after n rounds."""
    recipe = parse(text)
    server, engine = several(recipe, task, n)
    cast = rounds.cast_of(server, recipe)
    client, phases = engine.client(recipe, task, cast, k), rounds.personal_phases(recipe, task)
    return [(stage, copy.deepcopy(net)) for stage, net in personal_net(recipe, task, cast, client, phases)]


def moved(stages) -> dict[str, set[str]]:
    """stage -> the parts that moved in it."""
    found = {}
    for (_, before), (stage, after) in itertools.pairwise(stages):
        old, new = before.tensors(), after.tensors()
        found[stage] = {part(n) for n in new if not n.endswith(("mean", "var")) and not torch.equal(old[n], new[n])}
    return found


@pytest.fixture(scope="module")
def task():
    return skewed(2, train_size=120, lr=0.1, momentum=0.9, weight_decay=1e-3, epochs=2)


def test_each_stage_moves_its_own_tensors(task) -> None:
    assert moved(tuned("fedetf+algorithm2(turns=2)", task)) == {
        "0": {BODY, BETA}, "A1": {V, BETA}, "B1": {PROJ, BETA}, "A2": {V, BETA}, "B2": {PROJ, BETA},
    }  # fmt: skip


def test_as_in_the_official_code_beta_rests_and_stage_0_is_a_local_update(task) -> None:
    assert moved(tuned("fedetf+algorithm2(turns=1,compat=true)", task)) == {
        "0": {BODY, PROJ, BETA}, "A1": {V}, "B1": {PROJ},
    }  # fmt: skip


@pytest.mark.parametrize("turns", [0, 1])
def test_the_compatible_stage_0_is_one_more_local_training(task, turns: int) -> None:
    ours = tuned(f"fedetf+algorithm2(turns={turns},epochs={task.epochs},compat=true)", task)[1]
    usual = tuned("fedetf+extra_epoch", task)[1]
    assert ours[0] == "0"
    assert all(torch.equal(v, usual[1].tensors()[name]) for name, v in ours[1].tensors().items())


def test_stage_names_are_those_of_figure_6b(task) -> None:
    names = [stage for stage, _ in tuned("fedetf+algorithm2(turns=3,epochs=1)", task)]
    assert names == ["received", "0", "A1", "B1", "A2", "B2", "A3", "B3"]
    assert [stage for stage, _ in tuned("fedetf+algorithm2(turns=0)", task)] == ["received", "0"]


def test_v_is_not_normalised_again(task) -> None:
    *_, (_, net) = tuned("fedetf+algorithm2(turns=2,lr_v=1)", task)
    assert (net.head.weight.norm(dim=1) - 1).abs().max().item() > 1e-2
    x = task.dataset.x_test[:5]
    e = net.head.embed(net.features(x))
    assert torch.allclose(net(x), net.head.scale * e @ net.head.weight.T, atol=1e-5)  # V as it stands


def test_stages_by_the_formulas() -> None:
    # one client, full batches, one step a stage: the gradients of plain CE on z = beta V mu
    task = skewed(1, partition="iid", train_size=30, batch_size=100, lr=0.1, momentum=0.9, weight_decay=1e-2)
    recipe = parse("fedetf+algorithm2(turns=1,epochs=1,lr_v=0.3,lr_p=0.2)")
    server = rounds.begin(recipe, task)
    cast = rounds.cast_of(server, recipe)
    client = first_client(recipe, task, cast, 0)
    x, y = task.data[0]
    stages = [
        (s, copy.deepcopy(net))
        for s, net in personal_net(recipe, task, cast, client, rounds.personal_phases(recipe, task))
    ]
    for (_, before), (stage, after) in itertools.pairwise(stages):
        lr, decay = {"0": (0.1, 1e-2), "A": (0.3, 0.0), "B": (0.2, 5e-4)}[stage[0]]
        trains = {"0": {BODY, BETA}, "A": {V, BETA}, "B": {PROJ, BETA}}[stage[0]]
        before.zero_grad()
        F.cross_entropy(before(x), y).backward()  # no prior in any stage
        for name, p in before.named_parameters():
            expected = p - lr * (p.grad + decay * p) if part(name) in trains else p
            assert torch.allclose(dict(after.named_parameters())[name], expected, atol=1e-5), (stage, name)


def test_all_stages_are_plain_cross_entropy_without_prior_and_penalties(task) -> None:
    balanced = tuned("fedetf+algorithm2(turns=1)", task, n=0)
    other = tuned("fedavg+etfproj+prox(mu=100)+algorithm2(turns=1)", task, n=0)
    for (stage, a), (_, b) in zip(balanced, other, strict=True):
        assert_same(a.tensors(), b.tensors(), stage)


def test_the_extractor_is_in_eval_mode_in_stages_a_and_b() -> None:
    x = [[1.0, 0.0], [3.0, 1.0], [20.0, 5.0], [0.0, 40.0]]
    task = task_of(x, [0, 1, 0, 1], [[0, 1, 2, 3]], body=Normed)
    stages = dict(tuned("fedetf+algorithm2(turns=1,epochs=1)", task))
    stats = {stage: net.stats() for stage, net in stages.items()}
    assert not torch.equal(stats["0"]["body.bn.running_mean"], stats["received"]["body.bn.running_mean"])
    assert_same(stats["A1"], stats["0"])
    assert_same(stats["B1"], stats["0"])
    # and features in stage A are those of the running statistics: V moves by them
    net = stages["0"]
    xs, y = task.data[0]
    F.cross_entropy(net.eval()(xs), y).backward()
    moved = stages["A1"].head.weight - net.head.weight
    assert torch.allclose(moved, -0.1 * net.head.weight.grad, atol=1e-5)


def test_training_and_the_global_model_are_untouched(task) -> None:
    recipe = parse("fedetf+algorithm2(turns=1)")
    (with_it, _), (without, _) = several(recipe, task, 2), several("fedetf", task, 2)
    assert_same(with_it.w, without.w)


@pytest.mark.parametrize("text", ["fedavg", "fedavg+etf", "fedetf-noproj", "fedavg+sphere", "fedbabu"])
def test_recipes_without_projection_and_etf_are_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="algorithm2 finetunes the projection and classifier of FedETF"):
        rounds.begin(parse(f"{text}+algorithm2"), skewed(2, train_size=30))


def test_defaults_are_the_official_codes() -> None:
    phases = parse("fedetf+algorithm2").personalise(3, 0.04)
    assert len(phases) == 41
    assert {p.epochs for p in phases} == {3}
    task_step = Step(0.01, momentum=0.7, decay=1e-3)  # 0.01: eta_T
    taken = [phase.step(task_step, "head.weight") for phase in phases[:3]]
    assert taken == [task_step, Step(0.1, momentum=0.0, decay=0.0), Step(0.05, momentum=0.9, decay=5e-4)]


@pytest.mark.parametrize(("compat", "awake"), [("true", True), ("false", False)])
def test_algorithm2_compat_leaves_batchnorm_awake_as_the_code_does(compat, awake):
    recipe = parse(f"fedetf+algorithm2(turns=1,compat={compat})")
    task = toy.task_of([[0.0, 1.0], [1.0, 0.0], [2.0, 5.0]], [0, 1, 1], [[0, 1, 2]], body=toy.Normed)
    net = task.net(recipe)
    modes = []
    for phase in rounds.personal_phases(recipe, task):
        set_mode(net.thaw(phase.thaws), phase, lone_sample=False)
        modes.append(net.body.bn.training)
    assert modes == [True, awake, awake]
