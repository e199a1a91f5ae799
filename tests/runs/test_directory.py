"""The run directory: every file and key of the contract, and what is read back from it."""

import hashlib
import json
import statistics
from pathlib import Path

import pytest
from calling import SMALL, headway
from run_files import lines, read, unfinished
from safetensors import safe_open

from headway.base.errors import CheckpointError
from headway.runs.run import Run

pytestmark = pytest.mark.usefixtures("in_tmp")


# mlp_small on digits: 64 x 64 weights + 64 biases in the body, 10 x 64 + 10 in the head, 4 bytes each
BODY, HEAD = 4 * (64 * 64 + 64), 4 * (10 * 64 + 10)


CLIENTS = 3


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
    how = {"device": "cpu", "threads": 1, "engine": "local", "store": "auto"}
    how |= {"layout": "channels_first", "chunk": 512, "cohort": 1, "folded": True, "at_once": 0}
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
    with pytest.raises(CheckpointError, match=r"is not a finished run: it has no summary\.json; headway\.resume\("):
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
