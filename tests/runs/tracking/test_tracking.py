"""Tracking: real TensorBoard files, a real MLflow store, real offline W&B files; and the run never suffers from it."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from calling import SMALL, SMALL_TASK, headway
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

import headway as package
from headway.base.errors import ConfigError
from headway.methods import recipe as parse
from headway.runs import tracking
from headway.runs.cluster_jobs import Job, files_of, put_in_place
from headway.runs.directory import read_table
from headway.runs.run import Run
from headway.runs.runner import Options, Progress, execute, resume
from headway.runs.tracking import mlflow as tracked_by_mlflow
from headway.runs.tracking import tensorboard as tracked_by_tensorboard
from headway.runs.tracking import wandb as tracked_by_wandb
from headway.training.settings import settings
from headway.training.task import build


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """One folder for the module: making MLflow's store takes seconds."""
    return tmp_path_factory.mktemp("tracked")


@pytest.fixture(autouse=True)
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    for name in [n for n in os.environ if n.startswith(("MLFLOW_", "WANDB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")


class Crash(Progress):
    """Ends the process's work in round t, after its line was written, as a power cut would."""

    def __init__(self, t: int):
        self.t = t

    def round(self, row):
        if row["round"] == self.t:
            raise RuntimeError("power cut")


def ran(out: str | Path, track: str = "", recipe: str = "fedavg", **options) -> Run:
    given = Options(track=track or (), **options)
    return execute(recipe, settings({**SMALL_TASK, "rounds": 4}), Path(out), given)


def curve(run: Path, tag: str) -> list[tuple[int, float]]:
    """Steps and values as TensorBoard itself reads them."""
    found = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return [(e.step, e.value) for e in found.Scalars(tag)]


def wanted(run: Path, key: str) -> list[tuple[int, float]]:
    return [(row["round"], pytest.approx(float(row[key]))) for row in read_table(run / "metrics.jsonl")]


def store() -> MlflowClient:
    return MlflowClient(tracking_uri=f"sqlite:///{Path('runs/mlflow/mlflow.db').absolute()}")


def mlflow_id(run: Path) -> str:
    return json.loads((run / "tracking" / "mlflow.json").read_text())["run_id"]


def history(run: Path, key: str) -> list[tuple[int, float]]:
    found = store().get_metric_history(mlflow_id(run), key)
    return sorted((m.step, m.value) for m in found)


# ---- what is written
def test_tensorboard_reads_every_number_of_every_round(place):
    run = ran("tb", "tensorboard").path
    for key in ("global_acc", "global_loss", "personal_acc", "train_loss", "bytes_up", "diverged"):
        assert curve(run, key) == wanted(run, key), key
    assert [t for t, _ in curve(run, "seconds")] == [1, 2, 3, 4]
    assert curve(run, "end/global_acc") == [(4, pytest.approx(Run(run).summary["global_acc"]))]
    found = EventAccumulator(str(run / "tensorboard")).Reload()
    text = found.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| recipe | `fedavg` |" in text
    assert "| lr | `0.05` |" in text
    assert "_hparams_/session_start_info" in found.summary_metadata


def test_mlflow_store_has_settings_rounds_and_files(place):
    run = ran("ml", "mlflow", "fedprox").path
    found = store().get_run(mlflow_id(run))
    assert found.data.params["recipe"] == Run(run).config["recipe"]
    assert found.data.params["lr"] == "0.05"
    assert found.data.params["clip_norm"] == "None"
    assert found.data.tags["recipe"] == "fedprox"
    assert (found.info.status, found.info.run_name) == ("FINISHED", "fedprox")
    for key in ("global_acc", "train_loss", "bytes_up"):
        assert history(run, key) == wanted(run, key), key
    assert found.data.metrics["end/global_acc"] == pytest.approx(Run(run).summary["global_acc"])
    names = {a.path for a in store().list_artifacts(found.info.run_id)}
    assert names == {"config.json", "summary.json", "model.safetensors"}
    saved = Path(store().download_artifacts(found.info.run_id, "model.safetensors"))
    assert saved.read_bytes() == (run / "model.safetensors").read_bytes()


def test_a_run_that_failed_is_failed_in_mlflow_too(place):
    out = headway("run", "fedavg", *SMALL, "--lr=1e30", "--track", "mlflow", "--out", "wild")
    assert out.code == 0
    assert store().get_run(mlflow_id(Path("wild"))).info.status == "FAILED"


def wandb_records(run_id: str) -> list:
    """What W&B's offline files hold: LevelDB's log format, 7 bytes of header, then records in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    records = []
    for file in sorted(Path("runs/wandb").glob(f"offline-run-*-{run_id}/run-{run_id}.wandb")):
        data, at, blob = file.read_bytes(), 7, b""
        while at + 7 <= len(data):
            if 32768 - at % 32768 < 7:  # no room for another header: the block's end is empty
                at += 32768 - at % 32768
                continue
            size, kind = struct.unpack("<HB", data[at + 4 : at + 7])  # after the checksum; 1 whole, 2 first, 4 last
            blob += data[at + 7 : at + 7 + size]
            at += 7 + size
            if kind in (1, 4):
                records.append(Record.FromString(blob))
                blob = b""
    return records


def kinds(records) -> list[str]:
    return [record.WhichOneof("record_type") for record in records]


def wandb_curve(records, key: str) -> list[tuple[int, float]]:
    rows = []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            told = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            rows.append((told["round"], told[key]))
    return rows


def test_wandb_offline_and_continued(place):
    pytest.importorskip("wandb", reason="needs the extra: pip install -c constraints.txt -e '.[dev,wandb]'")
    with pytest.raises(RuntimeError, match="power cut"):
        ran("wb", "wandb", progress=Crash(3), checkpoint_seconds=1e9)
    run = resume(Path("wb")).path
    run_id = json.loads((run / "tracking" / "wandb.json").read_text())["id"]
    until = time.monotonic() + 20
    while kinds(records := wandb_records(run_id)).count("exit") < 2 and time.monotonic() < until:
        time.sleep(0.1)  # W&B's own process writes the files, and is not waited for
    assert wandb_curve(records, "global_acc") == wanted(run, "global_acc")
    asked = {u.key: u.value_json for r in records if r.WhichOneof("record_type") == "run" for u in r.run.config.update}
    assert json.loads(asked["lr"]) == "0.05"
    copies = list(Path("runs/wandb").glob(f"offline-run-*-{run_id}/files/model.safetensors"))
    assert [p.read_bytes() for p in copies] == [(run / "model.safetensors").read_bytes()]
    assert not copies[0].is_symlink()


def test_wandb_without_a_login_tracks_offline_and_says_so(place, tmp_path):
    pytest.importorskip("wandb", reason="needs the extra: pip install -c constraints.txt -e '.[dev,wandb]'")
    env = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")} | {"HOME": str(tmp_path)}
    env |= {"NETRC": str(tmp_path / "none"), "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-m", "headway", "run", "fedavg", *SMALL, "--track", "wandb", "--out", "alone", "--quiet"]
    end = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (end.returncode, end.stderr.count("\n")) == (0, 1), end.stderr
    assert "wandb has no API key, so it tracks offline" in end.stderr
    assert list((tmp_path / "runs" / "wandb").glob("offline-run-*"))


def test_a_login_or_a_mode_is_left_as_it_is(place, tmp_path, monkeypatch):
    def known(**given):
        return SimpleNamespace(**{"mode": "online", "api_key": None, "base_url": "https://api.wandb.ai"} | given)

    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert not tracked_by_wandb.has_login(known())
    assert tracked_by_wandb.has_login(known(mode="disabled"))
    assert tracked_by_wandb.has_login(known(api_key="k"))
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password nothing\n")
    assert tracked_by_wandb.has_login(known())
    assert not tracked_by_wandb.has_login(known(base_url="https://other.example"))


# ---- the run itself
def test_no_bit_depends_on_tracking(place):
    plain, followed = ran("plain").path, ran("followed", "tensorboard,mlflow").path
    for name in ("metrics.jsonl", "model.safetensors", "partition.json", "sampling.json"):
        assert (plain / name).read_bytes() == (followed / name).read_bytes(), name
    assert "track" not in Run(plain).config["options"]
    assert Run(followed).config["options"]["track"] == ["tensorboard", "mlflow"]


def test_the_command_takes_lists_and_repeats_and_says_nothing(place):
    end = headway("run", "fedavg", *SMALL, "--track=tensorboard,mlflow", "--track", "tensorboard", "--json", "--out=j")
    assert (end.code, end.err) == (0, "")
    assert end.json["rounds"] == 2
    assert Run(Path("j")).config["options"]["track"] == ["tensorboard", "mlflow"]


def test_python_and_comparisons_track_every_run(place):
    found = package.compare(["fedavg", "fedprox"], out="both", track="tensorboard", seeds=[0, 1], **SMALL_TASK)
    for row in found.rows:
        for run in row.runs:
            assert curve(run.path, "global_acc") == wanted(run.path, "global_acc")


# ---- stopped and continued
@pytest.mark.parametrize("seconds", [1e9, 0.0])  # no checkpoint yet: all rounds are made again; one after every round
def test_a_continued_run_goes_on_where_it_was_without_a_round_twice(place, seconds):
    out = Path(f"cut-{seconds:g}")
    with pytest.raises(RuntimeError, match="power cut"):
        ran(out, "tensorboard,mlflow", progress=Crash(3), checkpoint_seconds=seconds)
    assert [t for t, _ in curve(out, "global_acc")] == [1, 2]
    assert store().get_run(mlflow_id(out)).info.status == "KILLED"
    first = mlflow_id(out)
    resume(out)
    assert mlflow_id(out) == first
    assert store().get_run(first).info.status == "FINISHED"
    for key in ("global_acc", "train_loss"):
        assert curve(out, key) == wanted(out, key)
        assert history(out, key) == wanted(out, key)


def test_a_round_half_told_before_a_crash_leaves_no_wrong_value(place):
    out = Path("half")
    with pytest.raises(RuntimeError, match="power cut"):
        ran(out, "tensorboard", progress=Crash(3), checkpoint_seconds=0.0)
    writer = SummaryWriter(str(out / "tensorboard"))
    writer.add_scalar("global_acc", 99.0, 3)  # told, and then the power went before anything else knew
    writer.close()
    resume(out)
    assert curve(out, "global_acc") == wanted(out, "global_acc")


def test_a_store_that_was_lost_meanwhile_is_begun_anew_with_all_rounds(place):
    out = Path("lost")
    with pytest.raises(RuntimeError, match="power cut"):
        ran(out, "mlflow,tensorboard", progress=Crash(3), checkpoint_seconds=0.0)
    first = mlflow_id(out)
    store().delete_run(first)
    shutil.rmtree(out / "tensorboard")
    resume(out)
    assert mlflow_id(out) != first
    assert history(out, "global_acc") == wanted(out, "global_acc")
    assert curve(out, "global_acc") == wanted(out, "global_acc")


def test_a_tracker_added_when_a_run_is_continued_gets_its_first_rounds_too(place):
    out = Path("late")
    with pytest.raises(RuntimeError, match="power cut"):
        ran(out, progress=Crash(3), checkpoint_seconds=0.0)
    ran(out, "tensorboard")  # the same request once more, now followed
    assert curve(out, "global_acc") == wanted(out, "global_acc")


def test_a_run_made_on_a_cluster_is_tracked_when_it_arrives(place):
    made, s = ran("made-there"), settings({**SMALL_TASK, "rounds": 4})
    job = Job("fedavg", parse("fedavg"), build(s), Path("arrived"))
    put_in_place(job, files_of(made.path), Options(track="tensorboard,mlflow"))
    assert curve(job.folder, "global_acc") == wanted(made.path, "global_acc")
    assert history(job.folder, "global_acc") == wanted(made.path, "global_acc")
    assert store().get_run(mlflow_id(job.folder)).info.status == "FINISHED"
    assert Run(job.folder).config["options"]["track"] == ["tensorboard", "mlflow"]


# ---- what goes wrong
def test_a_disk_that_fills_up_costs_one_line_and_no_bit(place, monkeypatch, capsys):
    whole = tracked_by_tensorboard.TensorBoard.round
    told = []

    def full(self, row):
        told.append(row["round"])
        if told == [1, 2]:
            raise OSError(28, "No space left on device")
        whole(self, row)

    monkeypatch.setattr(tracked_by_tensorboard.TensorBoard, "round", full)
    out = ran("full", "tensorboard").path
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "tracking with tensorboard stopped and the run goes on" in err
    assert "No space left" in err
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (out / name).read_bytes() == (ran("whole").path / name).read_bytes()
    assert curve(out, "global_acc") == wanted(out, "global_acc")  # there was space again at the end


def test_a_server_that_is_gone_costs_one_line(place, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert ran("gone", "mlflow").summary["rounds"] == 4
    err = capsys.readouterr().err
    assert err.count("headway: warning") == err.count("\n") == 1


def test_an_address_is_written_down_without_its_password():
    assert tracked_by_mlflow.without_password("https://me:secret@host:5000/a") == "https://host:5000/a"
    assert tracked_by_mlflow.without_password("sqlite:////a/b@c.db") == "sqlite:////a/b@c.db"


@pytest.mark.parametrize(("name", "extra"), [("tensorboard", "track"), ("mlflow", "track"), ("wandb", "wandb")])
def test_a_missing_package_is_one_sentence_before_anything_is_written(place, monkeypatch, name, extra):
    monkeypatch.setattr(tracking, "installed", lambda package: package != name)
    for command in ("run", "compare"):
        end = headway(command, "fedavg", *SMALL, "--track", name, "--out", "none")
        assert (end.code, end.err.count("\n")) == (2, 1)
        assert f"pip install 'headway[{extra}]'" in end.err
    with pytest.raises(ConfigError, match="not installed here"):
        package.compare(["fedavg"], out="none", track=[name], **SMALL_TASK)
    assert not Path("none").exists()


def test_an_unknown_tracker(place):
    end = headway("run", "fedavg", *SMALL, "--track", "tensorbord", "--out", "none")
    assert end.code == 2
    assert "did you mean 'tensorboard'?" in end.err
    assert headway("run", "fedavg", *SMALL, "--track", "", "--out", "none").code == 2
    assert not Path("none").exists()


def test_overwriting_a_run_removes_what_trackers_left_in_it_and_nothing_else(place):
    out = ran("again", "tensorboard").path
    (out / "tensorboard" / "mine.txt").write_text("notes")
    execute("fedprox", settings({**SMALL_TASK}), out, Options(overwrite=True))
    assert [p.name for p in (out / "tensorboard").iterdir()] == ["mine.txt"]
    assert not (out / "tracking").exists()
    (out / "tensorboard" / "mine.txt").unlink()
    execute("fedavg", settings({**SMALL_TASK, "rounds": 4}), out, Options(overwrite=True, track="tensorboard"))
    assert curve(out, "global_acc") == wanted(out, "global_acc")


def test_numbers_by_name():
    row = {"round": 3, "a": 1, "b": None, "c": {"d e": 0.5, "x:y": {"z": True}}, "t": "text"}
    assert dict(tracking.numbers(row)) == {"a": 1.0, "c/d e": 0.5, "c/x_y/z": 1.0}


def test_a_watched_run_made_on_a_cluster_is_tracked_with_what_was_watched(place):
    made, s = ran("watched-there", watch="norms,drift,steps"), settings({**SMALL_TASK, "rounds": 4})
    job = Job("fedavg", parse("fedavg"), build(s), Path("watched"))
    put_in_place(job, files_of(made.path), Options(track="tensorboard,mlflow"))
    seen = read_table(made.path / "watch.jsonl")
    for key in ("drift_body", "weight_global"):
        told = [(row["round"], pytest.approx(row[key])) for row in seen]
        assert len(told) == 4
        assert curve(job.folder, key) == told
        assert history(job.folder, key) == told
    assert curve(job.folder, "steps/0") == [(row["round"], row["steps"]["0"]) for row in seen]


def test_rounds_told_later_are_those_told_live(place, monkeypatch):
    live: list[dict] = []
    monkeypatch.setattr(tracked_by_tensorboard.TensorBoard, "round", lambda self, row: live.append(dict(row)))
    out = ran("live", "tensorboard", watch="norms,steps").path
    assert "steps" in live[0]
    assert tracking.rows_of(out) == live
