"""`Run`: a run directory, read back."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.base.errors import CheckpointError, HeadwayError, PluginError
from headway.base.lazy import LazyModule
from headway.runs.directory import (
    NEW_FOLDER,
    Table,
    check_is_run,
    is_done,
    read_json,
    read_model,
    read_table,
)

if TYPE_CHECKING:
    from headway.models.net import Net
    from headway.runs import rebuild
    from headway.training.task import Task
else:
    rebuild = LazyModule("headway.runs.rebuild")  # it imports torch, which listing runs does without


@dataclass(frozen=True)
class Run:
    """A run directory, read back: its config, its rounds, its figures and its models.

    Files are read when they are first asked for. `headway.run` and `headway.resume` return a Run; any folder that
    holds a run can be opened with `Run(path)`.

    Args:
        path: The run directory.
        task: The task it was made from, where this process has it. It is needed for the models of a run whose data
            or network were Python objects.

    Attributes:
        config: config.json: recipe, settings, options, versions, command.
        summary: summary.json of a finished run: accuracies, traffic, seconds, personal figures.
        metrics: metrics.jsonl, one row a round; `run.metrics["global_acc"]` is a column.
        timings: timings.jsonl, the seconds of each round.
        done: Whether the run is finished.

    Raises:
        CheckpointError: The folder holds no run; or, when a file is read, it is missing or damaged.

    >>> import headway, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> out = folder.name + "/run"
    >>> made = headway.run("fedavg", model="mlp_small", rounds=1, clients=2, train_size=100, out=out)
    >>> run = headway.Run(out)
    >>> run.done, run.config["recipe"], run.metrics["round"]
    (True, 'fedavg', [1])
    >>> run.model()(made.task.dataset.x_test[:5]).shape
    torch.Size([5, 10])
    >>> folder.cleanup()
    """

    path: Path
    task: Task | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))  # it may be given as a string
        check_is_run(self.path)

    @cached_property
    def config(self) -> dict[str, Any]:
        return read_json(self.path / "config.json")

    @cached_property
    def summary(self) -> dict[str, Any]:
        found = read_json(self.path / "summary.json")
        if not isinstance(found, dict) or "failed" not in found:
            raise CheckpointError(f"{self.path / 'summary.json'} is damaged: it is not a run's; {NEW_FOLDER}")
        return found

    @cached_property
    def metrics(self) -> Table:
        """One row a round; of a finished run all of them."""
        rows = read_table(self.path / "metrics.jsonl")
        rounds = self.summary.get("rounds") if self.done and self.summary["failed"] is None else None
        if isinstance(rounds, int):
            there = [row.get("round") if isinstance(row, dict) else None for row in rows]
            if there != list(range(1, rounds + 1)):
                raise CheckpointError(
                    f"{self.path / 'metrics.jsonl'} is damaged: it has {len(rows)} lines and the run had {rounds} "
                    f"rounds; {NEW_FOLDER}"
                )
        return rows

    @cached_property
    def timings(self) -> Table:
        return read_table(self.path / "timings.jsonl")

    @property
    def done(self) -> bool:
        return is_done(self.path)

    def model(self) -> Net:
        """The global model on the CPU, in eval mode: logits = run.model()(x).

        Raises:
            CheckpointError: model.safetensors is missing or damaged, the network cannot be built again, or the plugin
                that brings it has changed.
            PluginError: A plugin of the run is not there.
        """
        return self._net(self.path / "model.safetensors")

    def personal(self, k: int) -> Net:
        """The personal model of client k.

        Raises:
            CheckpointError: The run saved no model of this client.
        """
        path = self.path / "clients" / f"{k}.safetensors"
        if not path.exists():
            if there := sorted(int(p.stem) for p in path.parent.glob("*.safetensors") if p.stem.isdigit()):
                known = (
                    f"{there[0]} to {there[-1]}" if len(there) == there[-1] - there[0] + 1 else f"{len(there)} others"
                )
                raise CheckpointError(f"client={k}: {self.path} has no model of it; it has those of clients {known}")
            raise CheckpointError(
                f"{self.path} has no model of client {k}; a recipe saves personal models when clients keep parameters "
                f"of their own or it personalises (add +ft)"
            )
        return self._net(path)

    def report(self, out: str | Path | None = None) -> Path:
        """Write one HTML page about this run.

        Args:
            out: The file; report.html in the run directory unless given.

        Returns:
            The file's path.

        Raises:
            CheckpointError: The run is damaged.
            DiskError: The file cannot be written.
        """
        from headway.analysis.report.page import report  # an exception from the layers, as in compare.py

        return report([self.path], out)

    def _net(self, path: Path) -> Net:
        """A saved model in the network it was trained in."""
        tensors, header = read_model(path)
        try:
            task = self.task or rebuild.task_of_models(self.path, self.config)
            net = task.net_of(header["head"])
        except (CheckpointError, PluginError):  # it names the run and the fix
            raise
        except (HeadwayError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.path}: its network cannot be built from config.json ({error}); put back the data and model it "
                f"was made from, or use the run that headway.run gave back"
            ) from None
        return net.cpu().load(tensors).eval()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"
