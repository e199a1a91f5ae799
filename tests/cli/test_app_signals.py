"""Signals: a stopped command saves its work, says how to continue, and leaves nothing behind."""

import signal

import pytest
from calling import ESCAPE, headway, started
from processes import wait_until

from headway.runs.run import Run

pytestmark = pytest.mark.usefixtures("in_tmp")


def test_ctrl_c_outside_a_run_ends_with_130(monkeypatch):
    def interrupted(what):
        raise KeyboardInterrupt

    monkeypatch.setattr("headway.cli.list.listing", interrupted)
    end = headway("list")
    assert (end.code, end.err) == (130, "headway: interrupted\n")


def test_a_reader_that_has_seen_enough_is_no_error():
    process = started("list", "--json")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) == 0


LONG = ("--clients=3", "--rounds=60", "--train-size=200", "--test-size=80", "--model=mlp_small", "--threads=1")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    assert headway("run", "scaffold", *LONG, "--quiet", f"--out={out}").code == 0
    return out


def lines(file):
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_after_a_checkpoint_and_resume_ends_with_the_same_bytes(uninterrupted, tmp_path, number, code):
    out = tmp_path / "run"
    process = started("run", "scaffold", *LONG, "--checkpoint-seconds=0.2", f"--out={out}")
    try:
        wait_until(lambda: process.poll() is not None or lines(out / "metrics.jsonl") >= 3, 60, every=0.005)
        assert process.poll() is None, process.stderr.read()

        second = headway("run", "scaffold", *LONG, f"--out={out}")  # meanwhile, in the same folder
        assert second.code == 2
        assert f"out={out}: process {process.pid} on " in second.err

        process.send_signal(number)
        told, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code
    assert told == ""
    assert ESCAPE not in said
    assert "Traceback" not in said
    done = len(Run(out).metrics)
    assert 3 <= done < 60
    assert said.endswith(f"headway: stopped after round {done}; `headway resume {out}` continues it\n")
    assert max(p.name for p in (out / "checkpoint").glob("round-*.json")) == f"round-{done:06d}.json"
    assert not (out / "summary.json").exists()

    assert headway("resume", out, "--json").json["rounds"] == 60
    for name in ("model.safetensors", "metrics.jsonl", "partition.json"):
        assert (out / name).read_bytes() == (uninterrupted / name).read_bytes()


def test_a_terminated_personalisation_takes_its_temporary_folder_along(uninterrupted, tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = started("personalise", uninterrupted, "--with=ft(epochs=100000)", env_more={"TMPDIR": str(temporary)})
    try:
        wait_until(lambda: process.poll() is not None or any(temporary.glob("headway-clients-*")), 60, every=0.02)
        assert process.poll() is None, process.stderr.read()
        process.terminate()
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143
    assert "Traceback" not in said
    assert list(temporary.iterdir()) == []
