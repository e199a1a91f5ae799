"""Resuming from a run directory: the same bytes, or one sentence that says what does not fit."""

import json
import shutil

import numpy as np
import pytest
from calling import SMALL, headway, refusal
from run_files import lines, read, unfinished

pytestmark = pytest.mark.usefixtures("in_tmp")


# ---- resume
def test_a_finished_run_is_left_as_it_is(copied):
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in copied.rglob("*") if p.is_file()}
    end = headway("resume", copied, "--json")
    assert end.code == 0
    assert end.json["global_acc"] == read(copied / "summary.json")["global_acc"]
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in copied.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("recipe", ["scaffold", "fedper", "ccvr(epochs=3)"])
def test_a_run_stopped_after_a_round_ends_with_the_same_bytes(made, tmp_path, recipe):
    whole = made(recipe)
    out = shutil.copytree(whole, tmp_path / "part")
    unfinished(out)
    shutil.rmtree(out / "clients", ignore_errors=True)
    (out / "checkpoint" / "round-000003.json").unlink()  # back to the checkpoint after round 2
    end = headway("resume", out)
    assert end.code == 0
    assert "continued after round 2" in end.err
    names = ["model.safetensors", "metrics.jsonl", *(f"clients/{p.name}" for p in whole.glob("clients/*"))]
    for name in names:
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert len(lines(out / "timings.jsonl")) == 3


def test_the_same_command_continues_an_unfinished_run(made, copied):
    unfinished(copied)
    (copied / "checkpoint" / "round-000003.json").unlink()
    words = [w for w in SMALL if w != "--quiet"]
    end = headway("run", "fedavg", *words, "--rounds=3", f"--out={copied}")
    assert "continued after round 2" in end.err
    assert (copied / "model.safetensors").read_bytes() == (made("fedavg") / "model.safetensors").read_bytes()


def test_lines_after_the_checkpoint_are_cut_off_torn_ones_too(made, copied):
    unfinished(copied)
    with open(copied / "metrics.jsonl", "a") as f:
        f.write('{"round": 4, "global_a')
    assert headway("resume", copied, "--quiet").code == 0
    assert (copied / "metrics.jsonl").read_bytes() == (made("fedavg") / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("shorter", [b"", b'{"round": 1}\n', None])
def test_metrics_that_lost_lines_are_not_continued(copied, shorter):
    unfinished(copied)
    if shorter is None:
        (copied / "metrics.jsonl").unlink()
    else:
        (copied / "metrics.jsonl").write_bytes(shorter)
    said = refusal("resume", copied)
    assert "metrics.jsonl has" in said
    assert "start again with `headway run --overwrite`" in said


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(made, copied):
    unfinished(copied)
    server = copied / "checkpoint" / "server-000003.safetensors"
    server.write_bytes(server.read_bytes()[:-1] + b"\x00")
    end = headway("resume", copied)
    assert end.code == 0
    assert end.err.startswith("checkpoint round-000003 (server-000003.safetensors is not what was written) is damaged")
    assert (copied / "model.safetensors").read_bytes() == (made("fedavg") / "model.safetensors").read_bytes()


@pytest.mark.parametrize("text", ["", "{", "not json", "\x00\x01"])
@pytest.mark.parametrize("command", ["resume", "run"])
def test_a_config_that_is_no_json_is_refused(copied, text, command):
    unfinished(copied)
    (copied / "config.json").write_text(text)
    words = ["resume", copied] if command == "resume" else ["run", "fedavg", *SMALL, f"--out={copied}"]
    said = refusal(*words)
    assert "config.json is damaged" in said
    assert "make the run again in another folder" in said


@pytest.mark.parametrize("text", ["[]", "{}", "3", '{"format": 1}'])
def test_a_config_of_another_program_is_refused(copied, text):
    unfinished(copied)
    (copied / "config.json").write_text(text)
    assert "is not headway's" in refusal("resume", copied)
    said = refusal("run", "fedavg", *SMALL, f"--out={copied}")
    assert "config.json is not headway's" in said


def test_a_config_of_another_format_is_refused(copied):
    unfinished(copied)
    config = read(copied / "config.json") | {"format": 99}
    (copied / "config.json").write_text(json.dumps(config))
    assert "has format 99 and this headway reads 1; use the version that wrote it" in refusal("resume", copied)


@pytest.mark.parametrize("change", [{"identity": None}, {"options": {}}, {"settings": None}])
def test_a_config_that_lacks_a_part_is_refused(copied, change):
    unfinished(copied)
    (copied / "config.json").write_text(json.dumps(read(copied / "config.json") | change))
    assert "config.json" in refusal("resume", copied)


@pytest.mark.parametrize(("key", "value"), [("rounds", 5), ("lr", 0.5), ("seed", 3), ("partition", "iid")])
def test_a_config_with_edited_settings_is_refused(copied, key, value):
    unfinished(copied)
    config = read(copied / "config.json")
    config["settings"][key] = value
    (copied / "config.json").write_text(json.dumps(config))
    said = refusal("resume", copied)
    assert str(copied) in said
    assert key in said


@pytest.mark.parametrize("command", ["resume", "run"])
def test_a_checkpoint_of_another_recipe_is_refused(made, copied, command):
    unfinished(copied)
    shutil.rmtree(copied / "checkpoint")
    shutil.copytree(made("scaffold") / "checkpoint", copied / "checkpoint")
    words = ["resume", copied] if command == "resume" else ["run", "fedavg", *SMALL, "--rounds=3", f"--out={copied}"]
    said = refusal(*words)
    assert "the checkpoint belongs to another task (recipe: scaffold there, fedavg here)" in said
    assert "put back the files that belong together" in said
    assert not (copied / "summary.json").exists()


def test_a_checkpoint_of_another_seed_is_refused(copied, tmp_path):
    assert headway("run", "fedavg", *SMALL, "--rounds=3", "--seed=1", f"--out={tmp_path / 'other'}").code == 0
    unfinished(copied)
    shutil.rmtree(copied / "checkpoint")
    shutil.copytree(tmp_path / "other" / "checkpoint", copied / "checkpoint")
    assert "the checkpoint belongs to another task (seed: 1 there, 0 here); " in refusal("resume", copied)


def test_a_run_whose_data_changed_is_refused(tmp_path):
    x, y = np.random.RandomState(0).rand(60, 4), np.arange(60) % 3
    np.savez("mine.npz", x=x, y=y)
    words = ["run", "fedavg", "--data=mine.npz", "--clients=2", "--rounds=1", "--quiet", "--out=a"]
    assert headway(*words).code == 0
    np.savez("mine.npz", x=x + 1, y=y)
    unfinished(tmp_path / "a")
    differs, fix = "(data mine.npz is not the same)", "the contents of mine.npz changed: put the old file back"
    said = refusal("resume", "a")
    assert f"a was made from something else {differs}; {fix}, or make the run again in another folder" in said
    assert f"out=a: it holds another run {differs}; choose another --out, or --overwrite" in refusal(*words)
