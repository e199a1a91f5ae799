"""Which pieces cannot work together: every rule is found before the first round and names both pieces."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from run_files import DIGITS
from toy import Normed, OneWeight, one_round, skewed, task_of

import headway
from headway.base.errors import HeadwayError, RecipeError
from headway.core import compatibility
from headway.core.compatibility import Setup
from headway.core.piece import Piece
from headway.core.recipe import Recipe
from headway.methods import REGISTRY
from headway.methods import recipe as parse
from headway.training import rounds


@pytest.fixture(scope="module")
def task():
    return skewed(3, train_size=60, batch_size=30)


def refused(text: str, task) -> str:
    """The message with which a recipe is refused, when it is read or when a run begins."""
    with pytest.raises(RecipeError) as error:
        rounds.begin(parse(text), task)
    return str(error.value)


def assert_names(message: str, *pieces: str) -> None:
    """Both names stand in the sentence itself and not only in the recipe it opens with; it ends with a remedy."""
    sentence = message.split(": ", 1)[1]
    for piece in pieces:
        assert re.search(rf"\b{piece}\b", sentence), message
    assert ";" in message
    assert re.search(r"keep one of the two|drop \w+ or \w+|write \w+\(", message), message


# 1: one base; an explicit one overrides the fedavg inside an alias
@pytest.mark.parametrize(("one", "two"), [("scaffold", "feddyn"), ("fedavgm", "fednova"), ("local", "centralized"),
                                          ("fedadam", "fedyogi"), ("perfedavg", "scaffold"), ("perfedavg", "feddyn"),
                                          ("fedexp", "local"), ("fedopt", "fedadagrad")])  # fmt: skip
def test_rule_1_two_bases(one: str, two: str, task) -> None:
    assert_names(refused(f"{one}+{two}", task), one, two)


@pytest.mark.parametrize("text", ["scaffold+fedfn", "fedfn+scaffold", "scaffold+fedavg+fn", "scaffold+fn"])
def test_rule_1_an_explicit_base_overrides_the_one_inside_an_alias(text: str) -> None:
    assert str(parse(text)) == "scaffold+fn"


# 2: one value for each part of the head
@pytest.mark.parametrize(("one", "two"), [("etf", "sphere"), ("etf", "babu"), ("fn", "etfproj"), ("clsnorm", "etf"),
                                          ("clsnorm", "sphere"), ("clsnorm", "babu"), ("clsnorm", "proto"),
                                          ("etf", "etfproj"), ("cosine", "etf"), ("cosine", "babu"),
                                          ("sphere", "proto"), ("babu", "proto"), ("linear", "fn"),
                                          ("cosine", "proto"), ("cosine", "sphere")])  # fmt: skip
def test_rule_2_the_same_part_of_the_head_set_twice(one: str, two: str, task) -> None:
    assert_names(refused(f"{one}+{two}", task), one, two)


@pytest.mark.parametrize(
    "text", ["fn+babu", "fn+clsnorm", "fn+etf", "fn+sphere", "fn+cosine", "clsnorm+cosine", "nobias+babu", "nobias+fn"]
)
def test_rule_2_different_parts_go_together(text: str, task) -> None:
    server, _, _ = one_round(text, task)
    assert all(v.isfinite().all() for v in server.w.values())


def test_rule_2_fn_and_etf_are_unit_features_on_a_frozen_etf(task) -> None:
    net = task.net(parse("fn+etf"))
    x = task.dataset.x_test[:4]
    h = net.features(x)
    assert torch.allclose(net(x), h / h.norm(dim=1, keepdim=True) @ net.head.weight.T, atol=1e-6)


# 3: nothing moves a frozen classifier
@pytest.mark.parametrize("mover", ["clsprox", "spread"])
@pytest.mark.parametrize("frozen", ["etf", "sphere", "babu", "etfproj", "proto"])
def test_rule_3_moving_a_frozen_classifier(mover: str, frozen: str, task) -> None:
    assert_names(refused(f"{mover}+{frozen}", task), mover, frozen)


@pytest.mark.parametrize("text", ["clsprox+fn", "spread+fn", "clsprox+clsnorm", "spread+cosine", "clsprox+spread"])
def test_rule_3_a_trained_classifier_may_be_moved(text: str, task) -> None:
    assert one_round(text, task)[0].round == 1


@pytest.mark.parametrize("mover", ["clsprox", "spread"])
@pytest.mark.parametrize("share", ["fedper", "fedrep", "ownmodel", "fedtc", "fedrod"])
def test_rule_3_a_classifier_that_is_not_one_for_all_cannot_be_moved(mover: str, share: str, task) -> None:
    assert_names(refused(f"{mover}+{share}", task), mover, share)


def test_rule_3_a_shared_classifier_over_personal_bodies_can(task) -> None:
    assert one_round("lgfedavg+spread+clsprox", task)[0].round == 1


# 4: one loss
@pytest.mark.parametrize(("one", "two"), [("balanced", "restricted"), ("mse", "balanced"), ("mse", "restricted"),
                                          ("dotreg", "mse"), ("balanced", "fedrod"), ("restricted", "fedtc"),
                                          ("mse", "fedrod")])  # fmt: skip
def test_rule_4_two_losses(one: str, two: str, task) -> None:
    assert_names(refused(f"{one}+{two}", task), one, two)


def test_rule_4_regularisers_add_to_any_loss(task) -> None:
    assert one_round("balanced+prox+featnorm+ntd+mmd+protoalign", task)[0].round == 1


# 5: one sharing rule, one personalisation; a personal classifier is not frozen; two-headed ones are linear
@pytest.mark.parametrize(("one", "two"), [("fedper", "fedrep"), ("fedper", "lgfedavg"), ("fedrod", "fedtc"),
                                          ("fedper", "ownmodel"), ("finetune", "ditto"), ("extra_epoch", "one_step"),
                                          ("alternate", "finetune"), ("fedrep", "alternate"),
                                          ("local", "fedper")])  # fmt: skip
def test_rule_5_two_sharing_rules_or_two_personalisations(one: str, two: str, task) -> None:
    assert_names(refused(f"{one}+{two}", task), one, two)


@pytest.mark.parametrize("share", ["fedper", "fedrep", "lgfedavg"])
@pytest.mark.parametrize("frozen", ["etf", "sphere", "babu"])
def test_rule_5_sharing_by_a_frozen_classifier_is_pointless(share: str, frozen: str, task) -> None:
    assert_names(refused(f"{share}+{frozen}", task), share, frozen)


@pytest.mark.parametrize("frozen", ["etf", "sphere", "babu"])
def test_rule_5_training_a_frozen_classifier_in_its_turn(frozen: str, task) -> None:
    assert_names(refused(f"alternate+{frozen}", task), "alternate", frozen)


@pytest.mark.parametrize("two", ["fedrod", "fedtc"])
@pytest.mark.parametrize("head", ["fn", "etf", "sphere", "babu", "clsnorm", "cosine", "proto", "etfproj"])
def test_rule_5_two_headed_methods_need_linear_classifiers(two: str, head: str, task) -> None:
    assert_names(refused(f"{two}+{head}", task), two, head)


@pytest.mark.parametrize("text", ["fedper+fn", "fedrep+clsnorm", "lgfedavg+cosine", "fedper+fedetf", "fedtc+ft",
                                  "lgfedavg+fedetf", "alternate+fedetf"])  # fmt: skip
def test_rule_5_personal_parts_that_train_are_allowed(text: str, task) -> None:
    assert one_round(text, task)[0].round == 1


# 6: calibration needs one global classifier that may move
@pytest.mark.parametrize("calib", ["ccvr", "oracle"])
@pytest.mark.parametrize("frozen", ["etf", "sphere", "babu", "etfproj", "proto"])
def test_rule_6_calibrating_a_frozen_classifier(calib: str, frozen: str, task) -> None:
    message = refused(f"{calib}+{frozen}", task)
    assert_names(message, calib, frozen)
    assert f"write {calib}(replace_head=true)" in message


@pytest.mark.parametrize("text", ["ccvr(replace_head=true,epochs=1)", "ffc", "oracle(replace_head=true,epochs=1)"])
@pytest.mark.parametrize("frozen", ["etf", "sphere", "babu", "etfproj", "proto"])
def test_rule_6_a_frozen_classifier_may_be_replaced(text: str, frozen: str, task) -> None:
    recipe = parse(f"{text}+{frozen}")
    server, _, engine = one_round(recipe, task)
    net = rounds.finish(server, recipe, task, engine)
    assert net(task.dataset.x_test[:3]).isfinite().all()


@pytest.mark.parametrize(("one", "two"), [("ccvr", "oracle"), ("ccvr", "ffc"), ("oracle", "ffc")])
def test_rule_6_two_calibrations(one: str, two: str, task) -> None:
    assert_names(refused(f"{one}+{two}", task), one, two)


@pytest.mark.parametrize("calib", ["ccvr", "oracle", "ffc"])
@pytest.mark.parametrize("share", ["fedper", "fedrep", "lgfedavg", "ownmodel"])
def test_rule_6_calibration_without_a_global_model(calib: str, share: str, task) -> None:
    assert_names(refused(f"{calib}+{share}", task), calib, share)


# 7: per-fedavg's meta step; clients that never meet
@pytest.mark.parametrize("other", ["gmv", "moon"])
def test_rule_7_per_fedavg_with_what_its_meta_step_does_not_define(other: str, task) -> None:
    assert_names(refused(f"perfedavg+{other}", task), "perfedavg", other)


@pytest.mark.parametrize("other", ["gmv", "moon", "prox", "clsprox", "ccvr", "oracle", "ffc", "spread", "mmd", "ntd",
                                   "protoalign", "ditto", "proto"])  # fmt: skip
def test_rule_7_local_with_what_needs_the_server(other: str, task) -> None:
    assert_names(refused(f"local+{other}", task), "local", other)


@pytest.mark.parametrize("text", ["local+fn", "local+balanced", "local+featnorm", "local+ft", "local+babu",
                                  "perfedavg+fn+prox", "perfedavg+fedper"])  # fmt: skip
def test_rule_7_what_works_alone_is_allowed(text: str, task) -> None:
    assert one_round(text, task)[0].round == 1


# 8: memory vectors live in one raw feature space
@pytest.mark.parametrize("other", ["fn", "sphere", "etfproj", "cosine", "proto", "fedper", "fedrep", "lgfedavg",
                                   "fedtc", "fedrod", "ownmodel"])  # fmt: skip
def test_rule_8_memory_beside_unit_or_personal_features(other: str, task) -> None:
    message = refused(f"gmv+{other}", task)
    assert_names(message, "gmv", other)
    assert "write gmv(space=raw)" in message


@pytest.mark.parametrize("text", ["gmv(space=raw,warmup=1)+fn", "gmv(space=raw,warmup=1)+fedper",
                                  "gmv(space=raw,warmup=1)+fedetf", "gmv(warmup=1)+etf", "gmv(warmup=1)+clsnorm",
                                  "gmv(warmup=1)+babu"])  # fmt: skip
def test_rule_8_raw_space_is_a_choice_made_openly(text: str, task) -> None:
    server, _, engine = one_round(text, task)
    assert one_round(text, task, server, engine)[0].round == 2


# 9: prototypes beside model averaging
def test_rule_9_protoalign_beside_model_averaging_is_legal(task) -> None:
    recipe = parse("fedavg+protoalign")
    assert str(recipe) == "fedavg+protoalign"
    assert one_round(recipe, task)[1][0].w != {}
    assert str(parse("fedproto")) == "fedavg+protoalign+ownmodel"


# 10: dimensions, and BatchNorm on a single sample
@pytest.mark.parametrize(("text", "needs"), [("etf", 3), ("sphere", 4), ("etfproj(d=2)", 3),
                                             ("etfproj(project=false)", 3)])  # fmt: skip
def test_rule_10_frames_need_room(text: str, needs: int) -> None:
    narrow = task_of([[1.0, 2.0]] * 4, [0, 1, 2, 3], [[0, 1, 2, 3]], classes=4, body=lambda: OneWeight(1.0, 2))
    message = refused(text, narrow)
    assert message.startswith(text.split("(")[0] + ": 4 ")
    assert f"at least {needs}" in message


@pytest.mark.parametrize("text", ["etfproj", "proto", "fn", "clsnorm"])
def test_rule_10_other_heads_do_not(text: str) -> None:
    narrow = task_of([[1.0, 2.0]] * 4, [0, 1, 2, 3], [[0, 1, 2, 3]], classes=4, body=lambda: OneWeight(1.0, 2))
    assert one_round(text, narrow)[0].round == 1


@pytest.mark.parametrize("track", [True, False])
@pytest.mark.parametrize("base", ["fedavg", "scaffold", "fedrep", "ditto", "moon"])
def test_rule_10_batchnorm_trains_on_clients_of_one_sample_and_batches_of_one(base: str, track: bool) -> None:
    x = [[1.0, 0.0], [3.0, 1.0], [20.0, 5.0], [0.0, 40.0]]
    task = task_of(x, [0, 1, 0, 1], [[0], [1, 2, 3]], body=lambda: Normed(track), batch_size=2)
    server, reports, _ = one_round(base, task)
    assert all(v.isfinite().all() for v in server.w.values())
    assert reports[0].steps > 0


# all pairs: whatever is not refused runs; of the bases, those that act in different places
SHORT = {
    "ccvr": "ccvr(epochs=1,per_class=2)", "oracle": "oracle(epochs=1,per_class=2)", "gmv": "gmv(warmup=1)",
    "spread": "spread(steps=1)", "algorithm2": "algorithm2(turns=1)", "finetune": "finetune(epochs=1)",
}  # fmt: skip
ALIKE = ("fedavg", "fedavgm", "fedopt", "fedadagrad", "fedadam", "fedyogi", "fedexp", "linear", "nobias", "centralized")
PIECES = [p for p in REGISTRY.pieces if p.name not in ALIKE]


@pytest.mark.parametrize("first", [p.name for p in PIECES[:-1]])
def test_two_pieces_are_either_refused_or_run(first: str) -> None:
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    parts = [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11]]
    task = task_of(x, [0, 1, 2] * 4, parts, classes=3, body=lambda: OneWeight(1.0, 4))
    names = [p.name for p in PIECES]
    for second in names[names.index(first) + 1 :]:
        text = "+".join(SHORT.get(name, name) for name in (first, second))
        try:
            recipe = parse(text)
            own = task.for_recipe(recipe)
            server = rounds.begin(recipe, own)
        except RecipeError:
            continue
        server, _, engine = one_round(recipe, own, server)
        net = rounds.finish(server, recipe, own, engine)
        cast, phases = rounds.cast_of(rounds.predicting(server, recipe), recipe), rounds.personal_phases(recipe, own)
        (result,) = engine.personal(recipe, own, cast, [0], phases, True)
        assert net(own.dataset.x_test).isfinite().all(), text
        assert result.tensors, text


# ---- settings of the task


@pytest.mark.parametrize(
    ("recipe", "given", "says"),
    [
        ("fedavg", {"personal_from": "calibrated"}, "does not calibrate"),
        ("fedetf+ccvr(replace_head=true)", {"personal_from": "calibrated"}, "another kind of classifier"),
        ("fedavg+ffc", {"personal_from": "calibrated"}, "another kind of classifier"),
        ("scaffold", {"persist_momentum": True}, "scaffold divides"),
        ("fednova", {"persist_momentum": True}, "fednova divides"),
        ("fedavg", {"weights_head": True}, "give weights='FILE.safetensors'"),
    ],
)
def test_settings_that_contradict_the_recipe_are_refused(
    recipe: str, given: dict[str, object], says: str, tmp_path: Path
) -> None:
    with pytest.raises(HeadwayError, match=says):
        headway.run(recipe, out=tmp_path / "r", **(DIGITS | given))
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("recipe", "says"),
    [("fedper+gmv(space=raw,warmup=1)", "personal"), ("fn+clsnorm", "underfit"), ("fn+etf", "underfit")],
)
def test_doubtful_sums_come_with_advice(recipe, says):
    parsed = parse(recipe)
    assert says in " ".join(compatibility.check(Setup(parsed, 64, 10, 20, 0.1)))


def test_a_body_that_is_too_narrow_is_named_with_its_data(tmp_path):
    with pytest.raises(HeadwayError, match=r"\(model=resnet20, data=cifar100\)"):
        headway.run("etf", data="cifar100", model="resnet20", out=tmp_path / "r")


@pytest.mark.parametrize(
    ("hook", "trait", "fix"),
    [("requires", "global bdoy", "did you mean 'global body'?"), ("provides", "avaraged model", "'averaged model'?")],
)
def test_a_trait_that_nothing_knows_is_refused(hook, trait, fix):
    odd = type("Odd", (Piece,), {"name": "odd", "slot": "reg", hook: lambda self: {trait}})
    with pytest.raises(RecipeError, match=re.escape(fix)) as refused:
        Recipe((odd(),))
    assert f"odd: its {hook}() names '{trait}', which is no trait" in str(refused.value)
