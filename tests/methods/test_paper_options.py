"""Options the papers and their code leave open: each by small numbers, each off by default."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy import assert_same, one_round, several, skewed, slope, two_clients

import headway
from headway import rounds
from headway.engine import LocalEngine
from headway.errors import HeadwayError
from headway.heads import NearestHead
from headway.methods import REGISTRY
from headway.methods import recipe as parse
from headway.methods.gmv import GMV
from headway.methods.guide import guide
from headway.travels import leaves, travels

DIGITS = {"data": "digits", "clients": 4, "partition": "dir(0.3)", "train_size": 200, "test_size": 100, "rounds": 2}


# ---- prox and ditto without momentum and weight decay
def test_prox_plain_sgd_steps_without_momentum_and_decay() -> None:
    # two full-batch epochs on u alone: u1 = 0 - 0.1 g(0), u2 = u1 - 0.1 g(u1), whatever momentum and decay say
    task = two_clients(epochs=2, momentum=0.9, weight_decay=0.5)
    _, reports, _ = one_round("prox(mu=0,plain_sgd=true)+babu", task)
    u = 0.0
    for _ in range(2):
        u -= 0.1 * slope(u, [2.0], 0)
    assert float(reports[0].w["body.u"]) == pytest.approx(u, rel=1e-5)
    _, heavy, _ = one_round("prox(mu=0)+babu", task)
    assert float(heavy[0].w["body.u"]) > u + 1e-3  # momentum carries it further


def test_prox_plain_sgd_also_holds_in_the_phases_of_another_piece() -> None:
    phases = parse("fedrep+prox(plain_sgd=true)").phases(3)
    assert [(p.momentum, p.weight_decay) for p in phases] == [(0.0, 0.0)] * len(phases)
    assert [p.momentum for p in parse("fedrep+prox").phases(3)] == [None, None]


def test_ditto_plain_sgd_touches_the_second_model_only() -> None:
    task = two_clients(epochs=3, momentum=0.9)
    (plain, a), (heavy, b) = several("ditto(plain_sgd=true)+babu", task, 1), several("ditto+babu", task, 1)
    assert_same(plain.w, heavy.w)
    mine, theirs = (engine.store.get(0).kept["ditto"]["v"]["body.u"] for engine in (a, b))
    assert float(mine) != float(theirs)
    v = 0.0
    for _ in range(3):
        v -= 0.1 * (slope(v, [2.0], 0) + 0.75 * v)  # grad f(v) + lambda (v - w^t), w^t = 0
    assert float(mine) == pytest.approx(v, rel=1e-5)


# ---- gmv from the features training saw
def test_gmv_last_epoch_means_the_features_before_each_step() -> None:
    # client 0 has x = 2, one step an epoch: the last epoch sees h = 2 u1, the final model gives h = 2 u2
    task = two_clients(epochs=2)
    _, seen, _ = one_round("gmv(warmup=1,collect=last_epoch)+babu", task)
    _, final, _ = one_round("gmv(warmup=1)+babu", task)
    u1 = -0.1 * slope(0.0, [2.0], 0)
    u2 = u1 - 0.1 * slope(u1, [2.0], 0)
    assert seen[0].sent["gmv"]["mean"].flatten().tolist() == pytest.approx([2 * u1, 0.0], rel=1e-5)
    assert final[0].sent["gmv"]["mean"].flatten().tolist() == pytest.approx([2 * u2, 0.0], rel=1e-5)
    assert_same(seen[0].w, final[0].w)


def test_features_are_gathered_only_for_those_who_ask() -> None:
    assert GMV(collect="last_epoch").wants_seen()
    assert not GMV().wants_seen()
    assert not parse("fedetf+moon").wants_seen()


# ---- fedproto by nearest prototype
def test_nearest_head_answers_minus_the_squared_distance_where_a_prototype_is_known() -> None:
    head = NearestHead(2, 3, torch.Generator())
    head.proto.copy_(torch.tensor([[0.0, 0.0], [3.0, 4.0], [9.0, 9.0]]))
    head.known.copy_(torch.tensor([1.0, 1.0, 0.0]))
    z = head.personal(torch.tensor([[3.0, 0.0]]))
    assert z.flatten().tolist() == pytest.approx([-9.0, -16.0, -math.inf])
    head.known.zero_()
    h = torch.tensor([[3.0, 0.0]])
    assert torch.equal(head.personal(h), head(h))  # no prototype yet: the linear classifier


def test_fedproto_nearest_predicts_by_the_servers_prototypes_and_trains_the_same() -> None:
    task = skewed(4, train_size=200)
    a, b = "fedavg+ownmodel+protoalign(predict=nearest)", "fedproto"
    (server, engine), (_, other) = several(a, task, 3), several(b, task, 3)
    assert_same(engine.store.get(0).personal, other.store.get(0).personal)
    recipe = parse(a)
    cast = rounds.cast_of(server, recipe)
    results = {r.client: r for r in engine.personal(recipe, task, cast, [0, 1], [], True)}
    tensors = results[0].tensors
    assert_same(tensors["head.proto"], server.kept["protoalign"]["proto"])
    net = task.net(recipe).load(tensors).eval()
    x, y = task.test(0)
    h = net.features_of(x)
    gap = ((h[:, None] - tensors["head.proto"][None]) ** 2).sum(2)
    gap[:, tensors["head.known"] == 0] = math.inf
    assert results[0].last == int((gap.argmin(1) == y).sum())


def test_a_finetuning_never_meets_the_infinite_logits_of_unknown_classes() -> None:
    task = skewed(4, train_size=200)
    recipe = parse("fedavg+protoalign(predict=nearest)+ft(epochs=1)")
    engine = LocalEngine()
    server = rounds.run(recipe, task, engine, 1)
    phases = rounds.personal_phases(recipe, task)
    (result,) = engine.personal(recipe, task, rounds.cast_of(server, recipe), [0], phases, True)
    assert all(torch.isfinite(v).all() for v in result.tensors.values())


# ---- what a calibration starts from, what personal models start from
def test_calibration_of_personal_heads_starts_from_their_mean(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="global_head=mean_of_personal"):
        headway.run("fedper+ccvr", out=tmp_path / "no", **DIGITS)
    run = headway.run("fedper+ccvr(global_head=mean_of_personal)", out=tmp_path / "yes", **DIGITS)
    assert run.summary["calibrated"]["before"] == run.summary["global_acc_mean_of_personal"]
    assert run.summary["calibrated"]["after"] > run.summary["calibrated"]["before"]


def test_mean_of_personal_is_the_plain_mean() -> None:
    recipe, task = parse("fedper"), two_clients(start=1.0)
    server, engine = several(recipe, task, 1)
    heads = [engine.store.get(k).personal["head.weight"] for k in (0, 1)]
    mean = rounds.with_mean_of_personal(server, engine.store)
    assert mean.w["head.weight"].flatten().tolist() == pytest.approx(((heads[0] + heads[1]) / 2).flatten().tolist())
    assert_same(mean.w["body.u"], server.w["body.u"])


def test_personal_models_may_start_from_the_calibrated_one(tmp_path: Path) -> None:
    a = headway.run("fedavg+ccvr+ft(epochs=1,lr=1e-9)", out=tmp_path / "a", personal_from="calibrated", **DIGITS)
    b = headway.run("fedavg+ccvr+ft(epochs=1,lr=1e-9)", out=tmp_path / "b", **DIGITS)
    calibrated = load_file(a.path / "model.safetensors")["head.weight"]
    assert torch.allclose(load_file(a.path / "clients/0.safetensors")["head.weight"], calibrated, atol=1e-6)
    assert not torch.allclose(load_file(b.path / "clients/0.safetensors")["head.weight"], calibrated, atol=1e-3)


@pytest.mark.parametrize(
    ("recipe", "given", "says"),
    [
        ("fedavg", {"personal_from": "calibrated"}, "does not calibrate"),
        ("fedetf+ccvr(replace_head=true)", {"personal_from": "calibrated"}, "another kind of classifier"),
        ("fedavg+ffc", {"personal_from": "calibrated"}, "another kind of classifier"),
        ("scaffold", {"persist_momentum": True}, "scaffold divides"),
        ("fednova", {"persist_momentum": True}, "fednova divides"),
        ("fedavg", {"weights_head": True}, "give --weights"),
    ],
)
def test_settings_that_contradict_the_recipe_are_refused(
    recipe: str, given: dict[str, object], says: str, tmp_path: Path
) -> None:
    with pytest.raises(HeadwayError, match=says):
        headway.run(recipe, out=tmp_path / "r", **(DIGITS | given))
    assert not (tmp_path / "r").exists()


# ---- LG-FedAvg's warm start
def test_a_run_may_start_from_another_runs_body_and_classifier(tmp_path: Path) -> None:
    first = headway.run("fedavg", out=tmp_path / "a", **DIGITS)
    file = first.path / "model.safetensors"
    warm = headway.run("lgfedavg", out=tmp_path / "b", weights=str(file), weights_head=True, lr=1e-9, **DIGITS)
    held = load_file(file)
    body = next(name for name in held if name.startswith("body."))
    assert torch.allclose(load_file(warm.path / "clients/0.safetensors")[body], held[body])
    assert torch.allclose(load_file(warm.path / "model.safetensors")["head.weight"], held["head.weight"], atol=1e-6)
    with pytest.raises(HeadwayError, match=r"needs 'head\.proj\.weight'"):
        headway.run("fedetf", out=tmp_path / "c", weights=str(file), weights_head=True, **DIGITS)


# ---- FedExP's traces
def test_fedexp_logs_its_step_and_scores_both_iterates(tmp_path: Path) -> None:
    run = headway.run("fedexp", out=tmp_path / "r", **DIGITS)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert all(row["trace"]["fedexp.eta_g"] >= 1 for row in rows)
    assert run.summary["iterate_acc"] == rows[-1]["iterate_acc"]
    plain = headway.run("fedavg", out=tmp_path / "p", **DIGITS)
    assert "trace" not in json.loads((plain.path / "metrics.jsonl").read_text().splitlines()[0])


def test_fedexp_eta_g_by_hand() -> None:
    # u moves by +0.2 and -0.15, p = (1/3, 2/3): Dbar = -0.1/3, spread = 0.04/3 + 0.045/3
    recipe, task = parse("fedexp(eps=1e-9)+babu"), two_clients()
    server = rounds.begin(recipe, task)
    _, cast, reports = rounds.run_round(server, recipe, task, LocalEngine())
    got = recipe.trace(cast.w, reports, task.weights(reports))
    assert got == {"fedexp.eta_g": pytest.approx((0.085 / 3) / (2 * (0.1 / 3) ** 2), rel=1e-4)}


# ---- what leaves a client
def test_whatever_a_piece_sends_is_explained() -> None:
    for piece in REGISTRY.pieces:
        recipe = parse(guide(piece.name).recipe)
        up = travels(recipe)["up"] + [what.partition(":")[0] for what in travels(recipe)["once"]]
        told = leaves(recipe)
        assert all(row["tells"] for row in told)
        assert bool(told) == bool(up)


def test_label_counts_are_named_as_such() -> None:
    rows = {row["what"]: row["tells"] for row in leaves(parse("fedproto"))}
    assert rows["protoalign.n"] == "the label counts"
    assert "body" not in " ".join(rows)  # no model leaves
    assert leaves(parse("local")) == []
