"""One folder, one run: the same request again, another request, one owner at a time, a full disk."""

import errno
import os
from pathlib import Path

import pytest
from calling import SMALL, headway, refusal
from run_files import DIGITS, lines, read, unfinished

import headway as package
from headway.base.errors import HeadwayError
from headway.runs import lock
from headway.runs.runner import Progress

pytestmark = pytest.mark.usefixtures("in_tmp")


# ---- the same again
def test_the_same_command_twice_gives_the_same_bytes(made):
    assert headway("run", "scaffold", *SMALL, "--rounds=3", "--out=again").code == 0
    for name in ("model.safetensors", "metrics.jsonl", "partition.json"):
        assert Path("again", name).read_bytes() == (made("scaffold") / name).read_bytes()


def test_another_seed_gives_another_model(made):
    assert headway("run", "scaffold", *SMALL, "--rounds=3", "--seed=1", "--out=again").code == 0
    first, second = made("scaffold"), Path("again")
    assert (first / "model.safetensors").read_bytes() != (second / "model.safetensors").read_bytes()
    assert read(first / "partition.json")["hash"] != read(second / "partition.json")["hash"]


def test_the_same_command_into_the_same_folder_is_the_same_run_again(copied, made):
    assert headway("run", "fedavg", *SMALL, "--rounds=3", f"--out={copied}").code == 0
    assert (copied / "model.safetensors").read_bytes() == (made("fedavg") / "model.safetensors").read_bytes()


# ---- no run lost to another
@pytest.mark.parametrize(
    ("words", "differs"),
    [
        (["scaffold", *SMALL, "--rounds=3"], "recipe: fedavg there, scaffold here"),
        (["fedavg", *SMALL, "--rounds=4"], "rounds: 3 there, 4 here"),
        (["fedavg", *SMALL, "--rounds=3", "--seed=1"], "seed: 0 there, 1 here"),
    ],
)
def test_another_request_into_the_same_folder_is_refused(copied, words, differs):
    before = {p: p.read_bytes() for p in copied.rglob("*") if p.is_file()}
    said = refusal("run", *words, f"--out={copied}")
    assert f"out={copied}: it holds another run ({differs}" in said
    assert "choose another --out, or --overwrite to replace it" in said
    assert {p: p.read_bytes() for p in copied.rglob("*") if p.is_file()} == before


def test_overwrite_replaces_the_run_and_leaves_other_files_alone(copied):
    (copied / "notes.txt").write_text("mine")
    assert headway("run", "fedper", *SMALL, f"--out={copied}", "--overwrite").code == 0
    assert read(copied / "summary.json")["label"] == "fedper"
    assert len(lines(copied / "metrics.jsonl")) == 2
    assert (copied / "notes.txt").read_text() == "mine"
    assert headway("run", "fedavg", *SMALL, f"--out={copied}", "--overwrite").code == 0
    assert not (copied / "clients").exists()  # fedper's personal models went with fedper


def test_a_folder_of_other_things_is_not_used(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("precious")
    said = refusal("run", "fedavg", *SMALL, "--out=home")
    assert "thesis.tex" in said
    assert "choose another --out" in said
    assert os.listdir("home") == ["thesis.tex"]


def test_a_folder_in_use_is_refused_with_the_process_that_uses_it(copied):
    with lock.locked(copied):
        said = refusal("run", "fedavg", *SMALL, "--rounds=3", f"--out={copied}")
        assert f"process {os.getpid()} on " in said
        assert "wait for it or choose another --out" in said
    assert headway("run", "fedavg", *SMALL, "--rounds=3", f"--out={copied}").code == 0


def test_a_run_in_use_is_not_resumed(copied):
    unfinished(copied)
    with lock.locked(copied):
        assert f"process {os.getpid()} on " in refusal("resume", copied)


def test_an_owner_left_by_a_killed_process_does_not_block(copied):
    (copied / ".owner").write_text("process 1 on elsewhere")
    unfinished(copied)
    assert headway("resume", copied, "--quiet").code == 0
    assert not (copied / ".owner").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_ends_with_its_own_exit_code(monkeypatch, number):
    def full(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("headway.base.serialise.os.replace", full)
    end = headway("run", "fedavg", *SMALL, "--out=a")
    assert end.code == 74
    assert end.err.count("\n") == 1
    assert "free space" in end.err
    assert not list(Path("a").glob(".*.tmp"))


# ---- what a user's folder holds is theirs


def test_overwrite_never_touches_a_folder_that_holds_no_run(tmp_path):
    out = tmp_path / "mine"
    (out / "clients").mkdir(parents=True)
    (out / "clients" / "list.txt").write_text("mine")
    (out / "config.json").write_text('{"my": 1}')
    with pytest.raises(HeadwayError, match=r"config\.json is not headway's"):
        package.run("fedavg", out=out, overwrite=True, **DIGITS)
    assert (out / "config.json").read_text() == '{"my": 1}'
    (out / "config.json").unlink()
    (out / "c0").mkdir()
    with pytest.raises(HeadwayError, match="holds no run"):
        package.run("fedavg", out=out, overwrite=True, **DIGITS)


def test_overwrite_of_a_run_leaves_foreign_files_in_its_folders(tmp_path):
    run = package.run("fedper", out=tmp_path / "r", **DIGITS)
    (run.path / "clients" / "notes.txt").write_text("mine")
    package.run("fedavg", out=tmp_path / "r", overwrite=True, **DIGITS)
    assert [p.name for p in (tmp_path / "r" / "clients").iterdir()] == ["notes.txt"]


def test_a_finished_request_says_that_it_runs_again(tmp_path):
    heard = []

    class Hearing(Progress):
        def say(self, text):
            heard.append(text)

    for _ in range(2):
        package.run("fedavg", out=tmp_path / "r", options=package.Options(progress=Hearing()), **DIGITS)
    assert sum("runs again" in text for text in heard) == 1
    assert package.resume(str(tmp_path / "r")).done
