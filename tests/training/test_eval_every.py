"""--eval-every auto: evaluation takes a fifth of the time at most, by the numbers of samples; told and kept."""

from __future__ import annotations

import json

import pytest

import headway
from headway.base.errors import ConfigError
from headway.training.settings import settings


@pytest.mark.parametrize(
    ("trained", "tested", "more", "every"),
    [
        (10_000, 10_000, {"sampling": 0.1}, 14),  # 4 x 10,000 forward passes, 3 x 1,000 a round: 13.3
        (10_000, 10_000, {"sampling": 0.1, "epochs": 5}, 3),  # 2.7
        (50_000, 10_000, {}, 1),  # 40,000 against 150,000
        (100, 10_000, {"rounds": 30}, 30),  # 133.3, but the last round is evaluated
        (0, 10, {}, 20),  # 40 / 1, of 20 rounds at most
    ],
)
def test_the_choice_by_hand(trained, tested, more, every):
    s = settings({"eval_every": "auto", **more})
    assert s.evaluated_every(trained, tested) == min(every, s.rounds)
    assert settings({"eval_every": "7", **more}).evaluated_every(trained, tested) == 7


def test_a_run_says_and_keeps_what_it_chose(tmp_path, monkeypatch):
    told: list[str] = []

    class Told(headway.runs.options.Progress):
        def say(self, text):
            told.append(text)

    given = {"model": "mlp_small", "clients": 4, "rounds": 9, "train_size": 200, "test_size": 300, "sampling": 0.5}
    run = headway.run("fedavg", **given, eval_every="auto", out=tmp_path / "r", progress=Told())
    assert (
        "note: eval_every=auto: the model is evaluated after every 4 rounds, and after the last" in told
    )  # 1200 / 300
    assert run.config["settings"]["eval_every"] == 4
    assert [r["round"] for r in run.metrics if r["global_acc"] is not None] == [4, 8, 9]
    whole = (run.path / "metrics.jsonl").read_bytes()
    (run.path / "summary.json").unlink()
    (run.path / "model.safetensors").unlink()
    headway.resume(run.path)
    assert (run.path / "metrics.jsonl").read_bytes() == whole
    again = headway.run("fedavg", **given, eval_every=4, out=tmp_path / "s")
    assert (again.path / "metrics.jsonl").read_bytes() == whole
    assert json.loads((again.path / "config.json").read_text())["settings"] == run.config["settings"]


@pytest.mark.parametrize("value", ["often", 0, 1.5, True])
def test_other_words_are_refused(value):
    with pytest.raises(
        ConfigError, match=rf"^eval_every={value}: eval_every must be a whole number from 1 to 1,000,000,000, or auto$"
    ):
        settings({"eval_every": value})
