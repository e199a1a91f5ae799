"""Curves: smoothing by hand, what is read from metrics.jsonl and watch.jsonl, and what is passed over."""

from __future__ import annotations

import json
import math

import pytest
from calling import SMALL, headway
from diagnosed import check_whole, finished

from headway.analysis.diagnostics.curves import curve, smooth, traces, watched_rows
from headway.analysis.diagnostics.subject import Subject


def test_smoothing_by_hand() -> None:
    """At sigma = 2 the weights are 1, e^(-1/8), e^(-1/2) at distance 0, 1, 2."""
    a, b = math.exp(-1 / 8), math.exp(-1 / 2)
    found = smooth([0.0, 1.0, 0.0])
    assert found[1] == pytest.approx(1 / (1 + 2 * a))
    assert found[0] == pytest.approx(a / (1 + a + b))
    assert smooth([0.7] * 9) == pytest.approx([0.7] * 9)


def test_rounds_without_a_number_are_left_out() -> None:
    rows = [
        {"round": 1, "v": 1.0},
        {"round": 2, "v": None},
        {"round": 3},
        {"round": 4, "v": float("nan")},
        {"round": 5, "v": 2},
    ]
    assert curve(rows, "v") == [(1, 1.0), (5, 2.0)]


def test_a_watched_file_is_read_as_far_as_it_goes(tmp_path) -> None:
    path = tmp_path / "watch.jsonl"
    assert watched_rows(path) == []
    path.write_text('{"round": 1, "temperature": {"0": 2.0}, "drift_body": 0.5}\nbroken\n[1]\n{"round": 2, "drift_')
    assert watched_rows(path) == [{"round": 1, "drift_body": 0.5, "temperature.0": 2.0}]


def test_learning_curves_and_the_step_size_of_fedexp(tmp_path) -> None:
    subject = finished("fedexp", tmp_path / "run", rounds=12)
    found = traces(subject)
    check_whole(found, tmp_path)
    rows = [r for r in found.tables["curves"] if r["curve"] == "global"]
    assert [r["value"] for r in rows] == subject.saved.run.metrics["global_acc"]
    steps = [r["value"] for r in found.tables["curves"] if r["panel"] == "server step size"]
    assert steps == [row["trace"]["fedexp.eta_g"] for row in subject.saved.run.metrics]
    assert found.summary["eta g (highest)"] == max(steps)


def test_local_steps_are_drawn_client_by_client_beside_the_server_step_size(tmp_path) -> None:
    assert headway("run", "fedexp", *SMALL, "--watch=steps", f"--out={tmp_path / 'run'}").code == 0
    watched = [json.loads(line)["steps"] for line in (tmp_path / "run" / "watch.jsonl").read_text().splitlines()]
    found = traces(Subject.of(tmp_path / "run"))
    check_whole(found, tmp_path)
    drawn = [r for r in found.tables["curves"] if r["panel"] == "local steps"]
    for client, steps in watched[0].items():
        assert next(r["value"] for r in drawn if r["curve"] == f"client {client}") == steps
    assert len(drawn) == sum(map(len, watched))
    every = [n for row in watched for n in row.values()]
    assert (found.summary["local steps (fewest)"], found.summary["local steps (most)"]) == (min(every), max(every))
    assert "local steps: client 0" in found.alt
    assert "Also traced: server step size, local steps." in found.about


def test_watched_figures_are_drawn(tmp_path) -> None:
    subject = finished("fedetf", tmp_path / "run")
    lines = [
        {"round": t, "drift_body": t / 10, "drift_head": t / 5, "update_cosine": 0.1,
         "temperature": {"12": 3.0, "3": 2.0, "0": 1.0 + t}, "temperature_global": 1.5}
        for t in (1, 2)
    ]  # fmt: skip
    (tmp_path / "run" / "watch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = traces(subject)
    check_whole(found, tmp_path)
    drawn = {(r["panel"], r["curve"]) for r in found.tables["curves"]}
    whose = list(dict.fromkeys(r["curve"] for r in found.tables["curves"] if r["panel"] == "temperature"))
    assert whose == ["global", "client 0", "client 3", "client 12"]
    assert {("drift", "drift body"), ("drift", "drift head"), ("cosine of updates", "update cosine")} <= drawn
    assert found.summary["drift head (last)"] == 0.4
    beta = float(subject.saved.server.w["head.scale"])
    assert found.tables["temperatures"] == [{"whose": "global", "temperature": beta}]


def test_a_recipe_without_a_global_model_has_personal_curves(tmp_path) -> None:
    found = traces(finished("local", tmp_path / "run"))
    assert {r["curve"] for r in found.tables["curves"] if r["panel"] == "accuracy"} == {
        "mean personal as received", "pooled personal as received",
    }  # fmt: skip
    check_whole(found, tmp_path)
