"""MLflow: the server of MLFLOW_TRACKING_URI, or a local store in runs/mlflow that `mlflow ui` opens."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import filelock

from headway.runs.tracking import SHARED, Journal, Row, end_figures, numbers, settings_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "headway"
ARTIFACTS = ("config.json", "summary.json", "model.safetensors")
TIMEOUTS = {  # for a server that does not answer: training waits for it
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
}


def open_tracker(out: Path) -> Mlflow:
    return Mlflow(out)


class Mlflow:
    """One MLflow run a run directory; its id is in RUN/tracking, so that a continued run is added to it."""

    client: MlflowClient
    run_id: str

    def __init__(self, out: Path):
        self.out, self.journal = out, Journal(out, "mlflow")

    def begin(self, config: Mapping[str, Any]) -> int:
        for name, value in TIMEOUTS.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        notes, known = self.journal.read()
        given = os.environ.get("MLFLOW_TRACKING_URI") or notes.get("uri")
        folder = SHARED.absolute() / "mlflow"
        uri = given or f"sqlite:///{folder / 'mlflow.db'}"
        if given:
            self.client = MlflowClient(tracking_uri=uri)
            experiment = self._experiment(None)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(
                folder / ".lock", timeout=60
            ):  # of two runs that begin at once, one creates the store
                self.client = MlflowClient(tracking_uri=uri)
                experiment = self._experiment((folder / "artifacts").as_uri())
        if notes.get("run_id") and self._reopened(notes["run_id"]):
            return known
        tags = {"recipe": str(config["label"]), "headway": config["versions"]["headway"], "run": str(self.out)}
        self.run_id = self.client.create_run(experiment, run_name=str(config["label"]), tags=tags).info.run_id
        self._log(params=settings_of(config))
        self.journal.start({"run_id": self.run_id, "uri": without_password(uri)})
        return 0

    def _experiment(self, artifacts: str | None) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        found = self.client.get_experiment_by_name(name)
        return found.experiment_id if found else self.client.create_experiment(name, artifact_location=artifacts)

    def _reopened(self, run_id: str) -> bool:
        """Whether the store still has the run, which is then open again; a deleted one is not."""
        from mlflow.exceptions import MlflowException

        try:
            if self.client.get_run(run_id).info.lifecycle_stage != "active":
                return False
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        self.run_id = run_id
        self.client.update_run(run_id, status="RUNNING")
        return True

    def round(self, row: Row) -> None:
        self._log(dict(numbers(row)), row["round"])
        self.journal.add(row["round"])

    def _log(
        self, metrics: Mapping[str, float] | None = None, t: int = 0, params: Mapping[str, str] | None = None
    ) -> None:
        from mlflow.entities import Metric, Param

        now = int(time.time() * 1000)
        self.client.log_batch(
            self.run_id,
            [Metric(name, value, now, t) for name, value in (metrics or {}).items()],
            [Param(name, value) for name, value in (params or {}).items()],
        )

    def end(self, summary: Mapping[str, Any], done: int) -> None:
        self._log(end_figures(summary), done)
        for name in ARTIFACTS:
            self.client.log_artifact(self.run_id, str(self.out / name))
        self.client.set_terminated(self.run_id, "FAILED" if summary["failed"] else "FINISHED")

    def close(self) -> None:
        """Mark a run that has not ended as killed: it is not running any more."""
        if self.client.get_run(self.run_id).info.status == "RUNNING":
            self.client.set_terminated(self.run_id, "KILLED")


def without_password(uri: str) -> str:
    """The address without user name and password, to be saved."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in parts.netloc else uri
