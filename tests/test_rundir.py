"""The run directory: every file and key of the contract, one owner at a time, and no run lost to another."""

import errno
import hashlib
import json
import os
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest
from calling import SMALL, headway
from safetensors import safe_open

from headway import rundir
from headway.errors import CheckpointError
from headway.rundir import Run

# mlp_small on digits: 64 x 64 weights + 64 biases in the body, 10 x 64 + 10 in the head, 4 bytes each
BODY, HEAD = 4 * (64 * 64 + 64), 4 * (10 * 64 + 10)
CLIENTS = 3


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Finished runs by recipe, made once; tests only read them."""
    folder = tmp_path_factory.mktemp("runs")
    runs = {}

    def make(recipe):
        if recipe not in runs:
            out = folder / recipe
            end = headway("run", recipe, *SMALL, "--rounds=3", "--checkpoint-seconds=0", f"--out={out}")
            assert (end.code, end.err) == (0, "")
            runs[recipe] = out
        return runs[recipe]

    return make


@pytest.fixture
def copied(made, tmp_path):
    """A finished run to spoil."""
    return shutil.copytree(made("fedavg"), tmp_path / "copy")


def unfinished(out):
    """As if the run had been stopped after its last round."""
    (out / "summary.json").unlink()
    (out / "model.safetensors").unlink()


def read(path):
    return json.loads(path.read_text())


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def refusal(*words):
    end = headway(*words)
    assert end.code == 2
    assert end.err.count("\n") == 1
    return end.err


# ---- the files
def test_a_run_leaves_these_files_and_no_others(made):
    found = {p.name for p in made("fedavg").iterdir() if not p.name.startswith(".")}
    assert found == {
        "config.json", "partition.json", "metrics.jsonl", "timings.jsonl", "summary.json", "model.safetensors",
        "checkpoint", "sampling.json",
    }  # fmt: skip


def test_no_temporary_file_and_no_owner_is_left(made):
    assert [p.name for p in made("fedavg").rglob(".*")] == [".lock"]


def test_config_holds_what_is_needed_to_run_it_again(made):
    config = read(made("fedavg") / "config.json")
    assert config["format"] == 1
    assert config["recipe"] == "fedavg"
    assert config["settings"]["rounds"] == 3
    assert config["settings"]["model"] == "mlp_small"
    how = {"device": "cpu", "threads": 1, "engine": "local", "store": "auto", "layout": "channels_first"}
    assert config["options"] == how
    assert set(config["versions"]) == {"headway", "python", "torch", "numpy", "machine"}
    assert config["command"][:3] == ["headway", "run", "fedavg"]
    assert len(config["identity"]["data_hash"]) == len(config["identity"]["partition_hash"]) == 64


def test_the_model_auto_stands_for_is_written_down():
    assert headway("run", "fedavg", "--clients=2", "--rounds=1", "--train-size=60", "--quiet", "--out=a").code == 0
    assert Run(Path("a")).config["settings"]["model"] == "mlp"


def test_partition_tells_every_client_its_counts_and_hash(made):
    found = read(made("fedavg") / "partition.json")
    config = read(made("fedavg") / "config.json")
    assert found["spec"] == "dir(0.1)"
    assert found["hash"] == config["identity"]["partition_hash"]
    assert [c["id"] for c in found["clients"]] == [0, 1, 2]
    assert sum(c["n"] for c in found["clients"]) == 200
    for client in found["clients"]:
        assert sum(client["counts"]) == client["n"]
        assert len(client["counts"]) == len(client["test_counts"]) == 10
        assert len(client["index_hash"]) == 64
    assert sum(sum(c["test_counts"]) for c in found["clients"]) <= 80


def test_metrics_have_a_line_a_round_with_these_keys_and_no_clock(made):
    rows = lines(made("fedavg") / "metrics.jsonl")
    assert [row["round"] for row in rows] == [1, 2, 3]
    wanted = {"round", "global_acc", "global_loss", "personal_acc", "pooled_local_acc", "bytes_up", "bytes_down"}
    for row in rows:
        assert wanted <= set(row)
        assert not [key for key in row if "second" in key or "time" in key]
        assert all(isinstance(row[key], int | float) for key in wanted)


def test_times_are_kept_apart(made):
    rows = lines(made("fedavg") / "timings.jsonl")
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert all(row["seconds"] >= row["train_seconds"] >= 0 for row in rows)
    total = sum(row["seconds"] for row in rows)
    assert read(made("fedavg") / "summary.json")["seconds"] == pytest.approx(total, abs=1e-3)


def test_rounds_without_evaluation_have_no_scores():
    assert headway("run", "fedavg", *SMALL, "--rounds=3", "--eval-every=2", "--out=a").code == 0
    rows = lines(Path("a/metrics.jsonl"))
    assert [row["global_acc"] is None for row in rows] == [True, False, False]  # every second, and the last


def test_summary_figures_are_those_of_the_curve(made):
    summary, rows = read(made("fedavg") / "summary.json"), lines(made("fedavg") / "metrics.jsonl")
    accs = [row["global_acc"] for row in rows]
    assert summary["last"] == accs[-1]
    assert summary["best"] == max(accs)
    assert summary["last5"] == summary["last50"] == pytest.approx(sum(accs) / 3)  # three rounds are all there are
    assert summary["rounds"] == 3
    assert summary["failed"] is None


def test_the_headline_is_the_last_round_and_not_the_best(made):
    summary = read(made("fedavg") / "summary.json")
    assert summary["global_acc"] == summary["last"]


def test_the_headline_of_a_calibrated_recipe_is_the_calibrated_model(made):
    summary = read(made("ccvr(epochs=3)") / "summary.json")
    assert summary["global_acc"] == summary["calibrated"]["after"]
    assert summary["calibrated"]["before"] == summary["last"]


def test_balanced_accuracy_is_the_mean_over_classes(made):
    summary = read(made("fedavg") / "summary.json")
    assert len(summary["per_class"]) == 10
    known = [a for a in summary["per_class"] if a is not None]
    assert summary["balanced_acc"] == pytest.approx(sum(known) / len(known))


def test_personal_figures_by_hand(made):
    own = read(made("fedavg") / "summary.json")["personal"]
    clients = read(made("fedavg") / "partition.json")["clients"]
    tests = {str(c["id"]): sum(c["test_counts"]) for c in clients}
    accs = own["per_client"]
    assert set(accs) == {k for k, n in tests.items() if n}
    assert own["mean"] == pytest.approx(statistics.fmean(accs.values()))
    assert own["std"] == pytest.approx(statistics.pstdev(accs.values()))
    right = sum(accs[k] * tests[k] for k in accs)
    assert own["pooled"] == pytest.approx(right / sum(tests[k] for k in accs))


def test_without_local_tests_there_are_no_personal_figures():
    end = headway("run", "fedavg", *SMALL, "--local-test=none", "--json", "--out=a")
    assert end.json["personal"] is None
    assert [row["personal_acc"] for row in lines(Path("a/metrics.jsonl"))] == [None, None]


@pytest.mark.parametrize(
    ("recipe", "one_way"),
    [
        ("fedavg", BODY + HEAD),
        ("scaffold", 2 * (BODY + HEAD)),  # a control variate as large as the model goes along, both ways
        ("fedper", BODY),  # the head stays at home
        ("fedbabu", BODY),  # the head is frozen: nobody needs to send it
    ],
)
def test_bytes_by_hand(made, recipe, one_way):
    rows, summary = lines(made(recipe) / "metrics.jsonl"), read(made(recipe) / "summary.json")
    assert [(row["bytes_up"], row["bytes_down"]) for row in rows] == [(CLIENTS * one_way,) * 2] * 3
    assert summary["bytes_up"] == summary["bytes_down"] == 3 * CLIENTS * one_way


def test_bytes_count_the_clients_that_took_part():
    assert headway("run", "fedavg", *SMALL, "--sampling=0.67", "--out=a").code == 0  # 2 of 3
    assert [row["bytes_up"] for row in lines(Path("a/metrics.jsonl"))] == [2 * (BODY + HEAD)] * 2


def test_the_model_file_names_its_recipe_and_its_tensors(made):
    with safe_open(made("fedavg") / "model.safetensors", framework="pt") as f:
        assert json.loads(f.metadata()["headway"]) == {"format": 1, "recipe": "fedavg", "head": {}}
        sizes = {name: f.get_tensor(name).numel() for name in f.keys()}  # noqa: SIM118
    assert 4 * sum(n for name, n in sizes.items() if name.startswith("body.")) == BODY


@pytest.mark.parametrize("recipe", ["fedper", "fedavg+ft"])
def test_personal_models_are_saved_where_the_recipe_has_them(made, recipe):
    assert {p.name for p in (made(recipe) / "clients").iterdir()} == {f"{k}.safetensors" for k in range(CLIENTS)}


def test_no_personal_models_where_the_recipe_has_none(made):
    assert not (made("fedavg") / "clients").exists()


def test_the_last_two_checkpoints_are_kept_each_whole_with_its_manifest(made):
    folder = made("scaffold") / "checkpoint"
    assert sorted(p.name for p in folder.glob("round-*.json")) == ["round-000002.json", "round-000003.json"]
    named = set()
    for path in folder.glob("round-*.json"):
        manifest = read(path)["manifest"]
        assert manifest["identity"] == read(made("scaffold") / "config.json")["identity"]
        assert set(manifest["clients"]) == {"0", "1", "2"}  # each holds a control variate
        for name, sha in manifest["files"].items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sha
        named |= set(manifest["files"])
    assert {p.name for p in folder.glob("*.safetensors")} == named


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
    with rundir.locked(copied):
        said = refusal("run", "fedavg", *SMALL, "--rounds=3", f"--out={copied}")
        assert f"process {os.getpid()} on " in said
        assert "wait for it or choose another --out" in said
    assert headway("run", "fedavg", *SMALL, "--rounds=3", f"--out={copied}").code == 0


def test_a_run_in_use_is_not_resumed(copied):
    unfinished(copied)
    with rundir.locked(copied):
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

    monkeypatch.setattr("headway.values.os.replace", full)
    end = headway("run", "fedavg", *SMALL, "--out=a")
    assert end.code == 74
    assert end.err.count("\n") == 1
    assert "free space" in end.err
    assert not list(Path("a").glob(".*.tmp"))


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
    assert "start anew with `headway run --overwrite`" in said


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
    assert "the checkpoint belongs to another task (seed: 1 there, 0 here, partition_hash: " in refusal(
        "resume", copied
    )


def test_a_run_whose_data_changed_is_refused(tmp_path):
    x, y = np.random.RandomState(0).rand(60, 4), np.arange(60) % 3
    np.savez("mine.npz", x=x, y=y)
    words = ["run", "fedavg", "--data=mine.npz", "--clients=2", "--rounds=1", "--quiet", "--out=a"]
    assert headway(*words).code == 0
    np.savez("mine.npz", x=x + 1, y=y)
    unfinished(tmp_path / "a")
    changed = "mine.npz is not what a was made from (its contents changed): put the old file back"
    assert f"{changed}, or make the run again in another folder" in refusal("resume", "a")
    assert "data mine.npz has changed since" in refusal(*words)


# ---- reading it back
def test_a_run_object_reads_the_directory(made):
    run = Run(made("fedavg"))
    assert run.done
    assert run.config["recipe"] == "fedavg"
    assert run.summary["rounds"] == 3
    assert run.metrics["round"] == run.timings["round"] == [1, 2, 3]
    assert run.metrics[-1]["round"] == 3
    assert repr(run) == f"Run('{made('fedavg')}')"


def test_a_line_still_being_written_is_not_read(copied):
    with open(copied / "metrics.jsonl", "a") as f:
        f.write('{"round": 4, "glo')
    assert Run(copied).metrics["round"] == [1, 2, 3]


@pytest.mark.parametrize("name", ["config.json", "summary.json", "metrics.jsonl", "model.safetensors"])
def test_a_damaged_file_is_named(copied, name):
    (copied / name).write_bytes(b"\x00 not this\n")
    run = Run(copied)
    attempts = {"config.json": "config", "summary.json": "summary", "metrics.jsonl": "metrics"}
    with pytest.raises(CheckpointError, match=rf"{name} is .*damaged") as caught:
        getattr(run, attempts[name]) if name in attempts else run.model()
    fix = "makes it again from the run's checkpoint" if name not in attempts else "make the run again in another folder"
    assert fix in str(caught.value)


def test_an_unfinished_run_has_no_summary(copied):
    unfinished(copied)
    assert not Run(copied).done
    with pytest.raises(CheckpointError, match=r"is not a finished run: it has no summary\.json; `headway resume` it"):
        Run(copied).summary  # noqa: B018


def test_a_personal_model_that_is_not_there_says_which_recipes_have_them(made):
    with pytest.raises(CheckpointError, match=r"has no model of client 0; .*add \+ft"):
        Run(made("fedavg")).personal(0)


# ---- failed runs
def test_the_files_of_a_run_that_diverged_are_strict_json():
    def refuse(constant):
        raise AssertionError(constant)

    assert headway("run", "fedavg", *SMALL, "--lr=1e30", "--out=a").code == 0
    json.loads(Path("a/summary.json").read_text(), parse_constant=refuse)


def test_a_run_that_diverged_says_so_and_is_marked_failed():
    end = headway("run", "fedavg", *SMALL, "--lr=1e30", "--out=a")
    assert end.code == 0
    assert "failed: the loss is not finite from round 1 on" in end.out
    assert headway("resume", "a", "--json").json["failed"] == "the loss is not finite from round 1 on"
    assert headway("resume", "a", "--json").json["global_loss"] is None  # JSON has no NaN


def test_a_client_that_there_is_not_is_told_by_those_there_are(made):
    with pytest.raises(CheckpointError, match=r"^client=99: .* has no model of it; it has those of clients 0 to \d+$"):
        Run(made("fedper")).personal(99)
