"""headway.run with its default settings and workers="auto"; with tune=True where the job says so."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import shared

import headway
from headway.data import load
from headway.runs.runner import Experiment

MODELS = {"cnn": "mcmahan_cnn", "wide": "headway.bench.workloads:one_hidden_layer", "table": "mlp"}


def main() -> None:
    job = shared.job()
    folder = Path(job.folder)
    data, (clients, participants) = load(str(folder / "data.npz")), job.lists()
    counted = {"samples": 0, "steps": 0}
    after_round = Experiment.after_round

    def watched(self: Experiment, server: Any, cast: Any, reports: Any) -> None:
        """What the reports of the clients say they did, and when the last of them had come."""
        clock.round()
        assert [r.client for r in reports] == participants[len(clock.rounds) - 1], "other clients than the peers'"
        counted["samples"] += sum(r.n for r in reports)
        counted["steps"] += sum(r.steps for r in reports)
        after_round(self, server, cast, reports)

    Experiment.after_round = watched  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as out:
        clock = shared.Clock()
        run = headway.run(
            "fedavg", data=data, normalise="none", partition=str(folder / "partition.json"), local_test="none",
            model=MODELS[job.model], rounds=job.rounds, sampling=len(participants[0]) / len(clients),
            batch_size=job.batch, lr=job.lr, momentum=job.momentum, weight_decay=job.weight_decay,
            eval_every=1 if job.evaluate else job.rounds, workers="auto", tune=job.tune, out=Path(out) / "run",
        )  # fmt: skip
        whole = clock.whole()
        shared.finish(job, clock, whole, run.summary["global_acc"], counted)


if __name__ == "__main__":
    main()
