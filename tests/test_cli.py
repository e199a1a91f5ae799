"""The commands as people and scripts use them: what they print, what they write, how they end."""

import csv
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from calling import SMALL, SMALL_TASK, headway

import headway as package
from headway import comparison
from headway.cli import app
from headway.cli_options import HOW
from headway.data import load
from headway.data.partition import Partition
from headway.experiment import Options, Stopped
from headway.methods import REGISTRY
from headway.rundir import Run
from headway.settings import Settings

ESCAPE = "\x1b"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def files(folder="."):
    return {str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file() and p.name != ".lock"}


# ---- run
def test_run_prints_a_table_and_tells_where_the_run_is():
    end = headway("run", "fedavg", *SMALL, "--out=a")
    assert end.code == 0
    assert end.out.startswith("fedavg: 2 rounds in ")
    assert "-> a\n" in end.out
    for row in ("global, last round", "best round (not a result)", "personal, mean ± std over clients", "megabytes up"):
        assert row in end.out


def test_run_into_a_folder_whose_name_looks_like_markup_names_it_whole():
    assert "-> [red]a\n" in headway("run", "fedavg", *SMALL, "--out=[red]a").out


def test_quiet_says_nothing_on_stderr():
    assert headway("run", "fedavg", *SMALL, "--out=a").err == ""


def test_progress_goes_to_stderr_as_plain_lines_when_piped():
    words = [w for w in SMALL if w != "--quiet"]
    end = headway("run", "fedavg", *words, "--out=a")
    assert end.err.startswith("fedavg: 2 rounds\n")
    assert re.search(r"fedavg: round 2/2 global [\d.]+ % personal [\d.]+ % 0 s left\n", end.err)
    assert ESCAPE not in end.err + end.out


def test_json_is_the_summary_and_nothing_else():
    words = [w for w in SMALL if w != "--quiet"]
    end = headway("run", "fedavg", *words, "--json", "--out=a")
    assert end.err == ""
    assert end.out.count("\n") == 1
    assert end.json == json.loads(Path("a/summary.json").read_text()) | {"run": "a"}


def test_without_out_the_same_request_finds_its_own_folder_again():
    first, second = (headway("run", "fedavg", *SMALL, "--json").json["run"] for _ in range(2))
    assert first == second
    assert re.fullmatch(r"runs/fedavg-digits-[0-9a-f]{8}", first)
    assert headway("run", "fedavg", *SMALL, "--json", "--seed=1").json["run"] != first


def test_set_is_the_same_as_the_option():
    headway("run", "fedavg", *SMALL, "--lr=0.2", "--out=a")
    headway("run", "fedavg", *SMALL, "--set", "lr=0.2", "--out=b")
    assert Path("a/model.safetensors").read_bytes() == Path("b/model.safetensors").read_bytes()
    assert headway("run", "fedavg", *SMALL, "--set", "batch-size=16", "--set", "clip_norm=none", "--out=c").code == 0
    assert Run(Path("c")).config["settings"]["batch_size"] == 16


@pytest.mark.parametrize("command", ["run", "compare"])
def test_every_setting_is_an_option_of_run_and_compare(command):
    told = headway(command, "--help").out
    for name in (*Settings.model_fields, *HOW, "set", "json", "quiet"):
        assert f"  --{name.replace('_', '-')}" in told.replace("-q, --quiet", "--quiet")


def test_several_seeds_make_a_run_each_and_one_leaderboard():
    end = headway("run", "fedavg", *SMALL, "--seeds=0,1", "--out=a")
    assert end.code == 0
    assert {"leaderboard.json", "leaderboard.csv", "seed-0/summary.json", "seed-1/summary.json"} <= files("a")
    accs = [Run(Path(f"a/seed-{seed}")).summary["global_acc"] for seed in (0, 1)]
    mean, std = 100 * statistics.fmean(accs), 100 * statistics.pstdev(accs)
    assert f"{mean:.2f} ± {std:.2f}" in end.out
    assert "seeds 0, 1; ± is the spread over seeds" in end.out


def test_a_seed_among_several_is_the_run_of_that_seed_alone():
    headway("run", "fedavg", *SMALL, "--seeds=0,1", "--out=a")
    headway("run", "fedavg", *SMALL, "--seed=1", "--out=b")
    assert Path("a/seed-1/model.safetensors").read_bytes() == Path("b/model.safetensors").read_bytes()


def test_seeds_that_are_finished_are_not_run_again(monkeypatch):
    first = headway("run", "fedavg", *SMALL, "--seeds=0,1", "--out=a", "--json").json
    monkeypatch.setattr(comparison, "execute", None)  # a run would fail
    assert headway("run", "fedavg", *SMALL, "--seeds=0,1", "--out=a", "--json").json == first


def test_another_recipe_over_the_same_seeds_folder_is_refused():
    headway("run", "fedavg", *SMALL, "--seeds=0,1", "--out=a")
    before = files("a")
    end = headway("run", "scaffold", *SMALL, "--seeds=2,0", "--out=a")
    assert end.code == 2
    assert "it holds another run (recipe: fedavg there, scaffold here)" in end.err
    assert files("a") == before  # seed 2 was not started


# ---- compare
def test_compare_writes_runs_and_leaderboard():
    end = headway("compare", "fedavg", "scaffold", *SMALL, "--seeds=0,1", "--out=c")
    assert end.code == 0
    for recipe in ("fedavg", "scaffold"):
        assert {f"{recipe}/seed-0/summary.json", f"{recipe}/seed-1/summary.json"} <= files("c")
    board = json.loads(Path("c/leaderboard.json").read_text())
    table = list(csv.DictReader(Path("c/leaderboard.csv").read_text().splitlines()))
    assert {row["recipe"] for row in board} == {"fedavg", "scaffold"}
    assert [row["recipe"] for row in table] == [row["recipe"] for row in board]
    for row, line in zip(board, table, strict=True):
        runs = [Run(Path("c", run)) for run in row["runs"]]
        accs = [run.summary["global_acc"] for run in runs]
        own = [run.summary["personal"]["mean"] for run in runs]
        assert row["global"]["values"] == accs
        assert row["global"]["mean"] == pytest.approx(statistics.fmean(accs))
        assert row["global"]["std"] == pytest.approx(statistics.pstdev(accs))
        assert row["personal"]["mean"] == pytest.approx(statistics.fmean(own))
        assert row["megabytes"]["mean"] == sum(run.summary["bytes_up"] * 2 for run in runs) / 2e6
        assert float(line["global_mean"]) == pytest.approx(row["global"]["mean"], rel=1e-5)
        assert float(line["global_std"]) == pytest.approx(row["global"]["std"], rel=1e-5)
        assert row["failed"] == 0
    assert "leaderboard.json" in end.out
    assert headway("compare", "fedavg", "scaffold", *SMALL, "--seeds=0,1", "--out=c", "--json").json == board


def fake_runs(monkeypatch, curves):
    """Instead of training, every recipe ends with these figures."""

    def execute(text, s, folder, options, *, task, objects):
        last, best = curves[text]
        folder.mkdir(parents=True)
        figures = {"global_acc": last, "last": last, "best": best, "last5": last, "balanced_acc": last}
        rest = {"personal": None, "bytes_up": 0, "bytes_down": 0, "seconds": 0.0, "failed": None}
        (folder / "summary.json").write_text(json.dumps(figures | rest))
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(comparison, "execute", execute)


def test_the_leaderboard_is_sorted_by_the_last_round_and_never_by_the_best(monkeypatch):
    fake_runs(monkeypatch, {"fedavg": (0.5, 0.99), "scaffold": (0.6, 0.6), "fedprox": (0.4, 0.7)})
    end = headway("compare", "fedprox", "fedavg", "scaffold", *SMALL, "--out=c", "--json")
    assert [row["recipe"] for row in end.json] == ["scaffold", "fedavg", "fedprox"]


def test_a_leaderboard_without_personal_figures_says_so(monkeypatch):
    fake_runs(monkeypatch, {"fedavg": (0.5, 0.5)})
    assert "n/a" in headway("compare", "fedavg", *SMALL, "--out=c").out


def test_finished_runs_are_taken_as_they_are_and_new_recipes_are_added(monkeypatch):
    headway("compare", "fedavg", *SMALL, "--out=c")
    made = Path("c/fedavg/seed-0/config.json").stat().st_mtime_ns
    end = headway("compare", "fedavg", "fedprox", *SMALL, "--out=c", "--json")
    assert {row["recipe"] for row in end.json} == {"fedavg", "fedprox"}
    assert Path("c/fedavg/seed-0/config.json").stat().st_mtime_ns == made


def test_overwrite_makes_finished_runs_again():
    headway("compare", "fedavg", *SMALL, "--out=c")
    assert headway("compare", "fedavg", *SMALL, "--rounds=1", "--out=c").code == 2
    assert headway("compare", "fedavg", *SMALL, "--rounds=1", "--out=c", "--overwrite").code == 0
    assert Run(Path("c/fedavg/seed-0")).summary["rounds"] == 1


def test_a_folder_with_another_run_is_found_before_the_first_run_starts():
    headway("run", "scaffold", *SMALL, "--rounds=1", "--out=c/scaffold/seed-0")
    before = files("c")
    end = headway("compare", "fedavg", "scaffold", *SMALL, "--out=c")
    assert end.code == 2
    assert "it holds another run (rounds: 1 there, 2 here)" in end.err
    assert files("c") == before


def test_recipes_with_settings_get_readable_folders():
    assert headway("compare", "moon(mu=5)", "FedProx(mu=0.1)", *SMALL, "--rounds=1", "--out=c").code == 0
    assert sorted(os.listdir("c")) == ["fedprox(mu=0.1)", "leaderboard.csv", "leaderboard.json", "moon(mu=5)"]


def test_a_recipe_keeps_the_name_the_user_gave_it():
    end = headway("compare", "fedprox", *SMALL, "--rounds=1", "--out=c", "--json")
    assert [row["recipe"] for row in end.json] == ["fedprox"]


# ---- list, explain, cite
@pytest.mark.parametrize(
    ("what", "some", "keys"),
    [
        ("pieces", {"fedavg", "scaffold", "fn", "ccvr"}, {"name", "slot", "settings", "about", "paper"}),
        ("recipes", {"fedavg", "fedprox", "fedetf", "fedbabu"}, {"name", "pieces"}),
        ("models", {"mlp", "mcmahan_cnn", "resnet18"}, {"name", "about", "min_size", "bn"}),
        ("data", {"digits", "mnist", "cifar10", "femnist"}, {"name", "classes", "train", "test", "shape", "licence"}),
        ("partitions", {"iid", "dir", "shard", "classes", "natural"}, {"name", "about"}),
    ],
)
def test_list(what, some, keys):
    rows = headway("list", what, "--json").json
    assert some <= {row["name"] for row in rows}
    assert all(keys <= set(row) for row in rows)
    text = headway("list", what)
    assert text.code == 0
    assert ESCAPE not in text.out
    for row in rows:  # names are never cut
        assert re.search(rf"^ {re.escape(row['name'])} ", text.out, re.MULTILINE)


def test_list_without_a_word_lists_the_pieces():
    assert headway("list").out == headway("list", "pieces").out


def test_every_listed_recipe_parses_to_what_is_listed():
    for row in headway("list", "recipes", "--json").json:
        assert str(package.recipe(row["name"])) == row["pieces"]


@pytest.mark.parametrize("name", REGISTRY.names())
def test_explain_says_what_travels_for_every_piece_and_recipe(name):
    facts = headway("explain", name, "--json").json
    assert set(facts) == {"recipe", "hooks", "down", "up", "stays", "frozen", "once", "refused"}
    text = headway("explain", name)
    assert text.code == 0
    assert text.out.startswith(f"{facts['recipe']}: everything not listed is FedAvg's\n")
    for line in facts["hooks"]:
        assert line["hook"] in text.out


def test_explain_of_the_design_document():
    told = headway("explain", "scaffold+fn+gmv+ccvr").out
    assert "  correct      chain  scaffold\n" in told
    assert "  report       own    scaffold gmv\n" in told
    assert "  down:   body, head.weight, scaffold.c, gmv.mu\n" in told
    assert "  up:     body, head.weight, scaffold.delta_c, gmv.owns, gmv.mean\n" in told


@pytest.mark.parametrize(
    ("recipe", "stays", "up"),
    [("fedper", ["head.weight", "head.bias"], ["body"]), ("fedavg", [], ["body", "head.weight", "head.bias"])],
)
def test_explain_tells_what_stays_on_the_client(recipe, stays, up):
    facts = headway("explain", recipe, "--json").json
    assert (facts["stays"], facts["up"]) == (stays, up)


@pytest.mark.parametrize("name", REGISTRY.names())
def test_cite_prints_each_entry_once_in_bibtex(name):
    told = headway("cite", name).out
    keys = re.findall(r"^@(?:article|inproceedings)\{([a-z0-9]+),$", told, re.MULTILINE)
    assert len(keys) == len(set(keys)) >= 1
    assert told.count("{") == told.count("}")
    for entry in told.strip().split("\n\n"):
        assert entry.endswith("\n}")
        for field in ("title", "author", "year"):
            assert len(re.findall(rf"^  {field} = {{.+}},?$", entry, re.MULTILINE)) == 1


def test_cite_names_every_paper_of_a_recipe_and_no_paper_twice():
    told = headway("cite", "fedetf+ccvr").out  # both pieces of fedetf are from one paper
    assert re.findall(r"@\w+\{(\w+),", told) == ["mcmahan2017fedavg", "li2023fedetf", "luo2021ccvr"]


def test_cite_is_not_wrapped_to_the_terminal():
    assert max(map(len, headway("cite", "fedetf").out.splitlines())) > 100


# ---- partition
PARTITION = ("--clients=3", "--train-size=200")


def test_partition_prints_a_row_for_each_client_and_writes_nothing_without_out():
    end = headway("partition", *PARTITION)
    assert end.code == 0
    assert end.out.startswith("digits, dir(0.1), seed 0\n")
    assert re.search(r"^ 2 +\d+", end.out, re.MULTILINE)
    assert "effective_classes: " in end.out
    assert files() == set()


def test_partition_saves_a_file_that_reads_back_and_a_picture():
    told = headway("partition", *PARTITION, "--out=p", "--json").json
    assert files("p") == {"partition.json", "partition.png"}
    assert Path("p/partition.png").read_bytes().startswith(b"\x89PNG\r\n")
    labels = load("digits").subset(200).y.numpy()
    again = Partition.load(Path("p/partition.json"), labels)
    assert again.hash() == told["hash"]
    assert again.counts(labels).tolist() == told["counts"]
    assert sum(map(sum, told["counts"])) == 200


def test_a_saved_partition_is_the_one_a_run_uses():
    saved = headway("partition", *PARTITION, "--seed=5", "--out=p", "--json").json
    assert headway("run", "fedavg", *SMALL, "--partition=p/partition.json", "--out=a").code == 0
    run = Run(Path("a"))
    assert run.config["identity"]["partition_hash"] == saved["hash"]
    clients = json.loads(Path("a/partition.json").read_text())["clients"]
    assert [client["counts"] for client in clients] == saved["counts"]


def test_drawing_the_same_partition_again_is_no_harm_and_another_is_refused():
    assert headway("partition", *PARTITION, "--out=p").code == 0
    assert headway("partition", *PARTITION, "--out=p").code == 0
    before = Path("p/partition.json").read_bytes()
    end = headway("partition", *PARTITION, "--seed=1", "--out=p")
    assert end.code == 2
    assert "out=p: it holds another partition; choose another --out, or --overwrite to replace it" in end.err
    assert Path("p/partition.json").read_bytes() == before
    assert headway("partition", *PARTITION, "--seed=1", "--out=p", "--overwrite").code == 0
    assert Path("p/partition.json").read_bytes() != before


def test_partition_has_the_options_that_mean_something_for_a_partition():
    told = headway("partition", "--help").out
    shown = set(re.findall(r"^  --([a-z-]+)", told, re.MULTILINE))
    assert shown == {
        "data", "data-dir", "train-size", "test-size", "partition", "clients", "local-test", "merge-test", "seed",
        "out", "set", "overwrite", "json", "help",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lr=0.1"], "No such option '--lr': it belongs to `headway run` and `headway compare`; see `headway part"),
        (["--threads=2"], "No such option '--threads': it belongs to `headway run`, `headway compare` and `headway r"),
        (["--workers=2"], "No such option '--workers': it belongs to `headway run`, `headway compare`, `headway resu"),
        (["--set", "lr=0.1"], "lr=0.1: a partition is drawn without training; known: data, data_dir, "),
    ],
)
def test_partition_refuses_options_of_training(words, said):
    end = headway("partition", *PARTITION, *words, "--out=p")
    assert end.code == 2
    assert end.err.startswith(f"headway: {said}")
    assert files() == set()


def test_the_partition_of_a_run_is_not_written_over():
    headway("run", "fedavg", *SMALL, "--out=a")
    before = Path("a/partition.json").read_bytes()
    end = headway("partition", *PARTITION, "--out=a", "--overwrite")
    assert end.code == 2
    assert "out=a: it holds a run" in end.err
    assert Path("a/partition.json").read_bytes() == before


# ---- what is refused
EMPTY = [
    ("--data", "data='': it is empty; give a value, such as --data digits, or leave it out"),
    ("--data-dir", "data_dir='': it is empty; give a folder, such as --data-dir archives, or leave it out"),
    ("--weights", "weights='': it is empty; give a file, such as --weights body.safetensors, or leave it out"),
    ("--model", "model='': it is empty; give a value, such as --model auto, or leave it out"),
    ("--partition", "partition='': it is empty; give a value, such as --partition 'dir(0.1)', or leave it out"),
    ("--out", "out='': it is empty; give a folder, such as --out runs/mine, or leave it out"),
    ("--seeds", "seeds='': it is empty; give seeds, such as --seeds 0,1,2, or leave it out"),
]


@pytest.mark.parametrize(("option", "said"), EMPTY)
def test_an_empty_value_is_refused(option, said):
    end = headway("run", "fedavg", option, "")
    assert (end.code, end.out, end.err) == (2, "", f"headway: {said}\n")
    assert files() == set()


@pytest.mark.parametrize("name", [*(n for n, f in Settings.model_fields.items() if f.annotation is not bool), *HOW])
def test_every_empty_option_says_that_it_is_empty(name):
    end = headway("run", "fedavg", f"--{name.replace('_', '-')}= ")
    assert end.code == 2
    assert end.err.startswith(f"headway: {name}=' ': it is empty; give ")
    assert " None" not in end.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "fedavg", "--set", "data="], "data='': it is empty; give a value, such as --data digits"),
        (["run", "fedavg", "--set", "threads=2"], "threads=2: it is no setting of the task; write --threads 2"),
        (["run", "fedavg", "--set", ""], "set='': write key=value, such as --set lr=0.1"),
        (["partition", "--out", ""], "out='': it is empty; give a folder"),
        (["partition", "--seeds", ""], "seeds='': it is empty"),
        (["list", ""], "list '': there is no such list; known: pieces, "),
        (["resume", ""], "run='': it is empty; give the folder of a run, such as runs/mine"),
        (
            ["resume", "a", "--engine", ""],
            "engine='': it is empty; give a value, such as --engine local, or leave it out",
        ),
        (["calibrate", "", "--with=ccvr"], "run='': it is empty; give the folder of a run, such as runs/mine"),
        (["calibrate", "a", "--with", ""], "with='': it is empty; name a calibration, such as --with ccvr"),
        (["personalise", "a", "--with", " "], "with=' ': it is empty; name a personalisation, such as --with ft"),
        (["run", "fedavg", "--workers=many"], "workers=many: workers must be auto or a whole number from 1 to 1024"),
        (["run", "fedavg", "--model=net.py"], "model=net.py: the name of a network is missing; write net.py:Name"),
        (["run", "fedavg", "--workers=0"], "workers=0: workers must be auto or a whole number from 1 to 1024"),
    ],
)
def test_bad_values_are_refused_in_one_sentence(words, said):
    end = headway(*words)
    assert (end.code, end.out, end.err.count("\n")) == (2, "", 1)
    assert end.err.startswith(f"headway: {said}")
    assert files() == set()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["run", "fedavg", "fn"],
            "argument 'fn': `headway run` takes one recipe; write fedavg+fn to join pieces, or "
            "`headway compare fedavg fn` to compare",
        ),
        (
            ["run", "moon(mu=5)", "+", "ccvr"],
            "argument '+ ccvr': `headway run` takes one recipe; write 'moon(mu=5)+ccvr' to join pieces, or "
            "`headway compare 'moon(mu=5)' ccvr` to compare",
        ),
        (
            ["explain", "fedavg", "fn"],
            "argument 'fn': `headway explain` takes one recipe; write fedavg+fn to join pieces",
        ),
        (
            ["run", "fedavg", "batch_size=16"],
            "argument 'batch_size=16': `headway run` takes one recipe; write it as an option, --batch-size 16",
        ),
        (
            ["run", "moon", "mu=5"],
            "argument 'mu=5': `headway run` takes one recipe; settings of a piece stand in parentheses, "
            "as in 'moon(mu=5)'",
        ),
        (["list", "data", "x"], "argument 'x' is one too many; see `headway list --help`"),
        (["run", "fedavg", "--lrr=1"], "No such option '--lrr'; did you mean '--lr'?"),
        (["run", "fedavg", "-lr", "1"], "No such option '-lr'; did you mean '--lr'?"),
        (["run", "fedavg", "--learning-rate=1"], "No such option '--learning-rate'; did you mean '--lr'?"),
        (["run", "fedavg", "--local-epochs=1"], "No such option '--local-epochs'; did you mean '--epochs'?"),
        (["run", "fedavg", "--batch=1"], "No such option '--batch'; did you mean '--batch-size'?"),
        (["run", "fedavg", "--batch_size=1"], "No such option '--batch_size'; did you mean '--batch-size'?"),
        (["run", "fedavg", "--zzz=1"], "No such option '--zzz'; see `headway run --help`"),
        (["run", "fedavg", "-x"], "No such option '-x'; see `headway run --help`"),
        (["cite", "fedavg", "--json"], "No such option '--json'; see `headway cite --help`"),
        (["resume", "a", "--privacy"], "No such option '--privacy': it belongs to `headway explain`; see `headway res"),
    ],
)
def test_a_mistyped_command_gets_one_sentence_and_a_sensible_guess(words, said):
    end = headway(*words)
    assert (end.code, end.out, end.err.count("\n")) == (2, "", 1)
    assert end.err.startswith(f"headway: {said}")


@pytest.mark.parametrize("command", [["resume"], ["calibrate", "--with=ccvr"], ["personalise", "--with=ft"]])
@pytest.mark.parametrize("run", ["c/seed-0", "c/fedavg/seed-0"])
def test_a_folder_of_several_runs_is_told_from_a_run(command, run):
    Path(run).mkdir(parents=True)
    Path(run, "config.json").write_text("{}")
    end = headway(*command, "c")
    assert end.code == 2
    assert end.err == (
        f"headway: c is not one run: it holds several, such as {run}; name one of them, or repeat the command that "
        "made them, which continues them all\n"
    )


# ---- how it ends
@pytest.mark.parametrize("words", [["compare", "fedavg", "scaffold"], ["run", "fedavg", "--seeds=0,1"]])
def test_a_stopped_comparison_says_how_all_of_it_continues(words, monkeypatch):
    def stopped(text, s, folder, options, task, objects):
        raise Stopped(signal.SIGINT, folder, 1)

    monkeypatch.setattr(comparison, "execute", stopped)
    end = headway(*words, *SMALL, "--out=c")
    assert end.code == 130
    how = r"`headway resume c/\S+` continues it, and the same command again all of them"
    assert re.fullmatch(rf"headway: stopped after round 1; {how}\n", end.err)
    assert "the same command without --overwrite all of them" in headway(*words, *SMALL, "--out=c", "--overwrite").err


def test_help_of_every_command():
    told = headway("--help")
    assert told.code == 0
    assert "..." not in told.out.replace("[ARGS]...", "")  # no sentence is cut
    for command in app.registered_commands:
        assert f"  {command.name} " in told.out
        page = headway(command.name, "--help").out
        assert page.startswith(f"Usage: headway {command.name} ")
        assert "\\" not in page
        assert max(map(len, page.splitlines())) <= 80


def test_help_says_what_an_argument_is():
    assert "RECIPE  pieces joined with +, such as scaffold+fn" in headway("run", "--help").out
    assert "RECIPES...  one recipe or more" in headway("compare", "--help").out
    assert "RUN  the run directory" in headway("resume", "--help").out
    assert "[WHAT]  pieces, recipes, models, data or partitions [pieces]" in headway("list", "--help").out
    assert re.search(r"--with TEXT +such as ccvr", headway("calibrate", "--help").out)


def test_help_shows_choices_kinds_and_defaults():
    told = " ".join(headway("run", "--help").out.split())
    for part in (
        "--bn auto|running|batch|group normalisation",
        "--normalise dataset|half|imagenet|none input statistics",
        "--aggregation weighted|uniform",
        "--personal-from global|calibrated",
        "--store auto|memory|disk",
        "--batch-size INTEGER local batch size, B [32]",
        "--lr NUMBER client learning rate, eta [0.05]",
        "--train-size INTEGER take",
    ):
        assert part in told
    options = Options()
    for name, default in (("threads", 1), ("workers", "auto"), ("store", options.store), ("device", options.device)):
        assert re.search(rf"--{name} [^\[]*\[{default}\]", told), name
    assert re.search(rf"--checkpoint-seconds [^\[]*\[{options.checkpoint_seconds:g}\]", told)


@pytest.mark.parametrize("command", ["run", "compare", "resume", "calibrate", "personalise"])
def test_what_takes_its_time_can_be_told_to_be_quiet(command):
    assert "-q, --quiet" in headway(command, "--help").out


def test_headway_alone_shows_its_help():
    end = headway()
    assert (end.code, end.err) == (0, "")
    assert end.out.startswith("Usage: headway [OPTIONS] [COMMAND]")


def test_ctrl_c_outside_a_run_ends_with_130(monkeypatch):
    def interrupted(what):
        raise KeyboardInterrupt

    monkeypatch.setattr("headway.show.listing", interrupted)
    end = headway("list")
    assert (end.code, end.err) == (130, "headway: interrupted\n")


def test_a_bug_is_not_dressed_up_as_bad_input(monkeypatch):
    def broken(what):
        raise ZeroDivisionError

    monkeypatch.setattr("headway.show.listing", broken)
    with pytest.raises(ZeroDivisionError):
        headway("list")


def started(*words, env_more=None, **more):
    """A real process with its own pipes."""
    root = Path(package.__file__).parents[1]
    env = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"} | (env_more or {})
    command = [sys.executable, "-m", "headway.cli", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, **more)


def test_a_reader_that_has_seen_enough_is_no_error():
    process = started("list", "--json")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) == 0


def test_help_does_not_wait_for_torch():
    """Modules that take seconds are loaded by the command that needs them."""
    code = "import sys; from headway import cli; sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=Path(package.__file__).parents[1], timeout=60).returncode == 0
    )


LONG = ("--clients=3", "--rounds=60", "--train-size=200", "--test-size=80", "--model=mlp_small", "--threads=1")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    assert headway("run", "scaffold", *LONG, "--quiet", f"--out={out}").code == 0
    return out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_after_a_checkpoint_and_resume_ends_with_the_same_bytes(uninterrupted, tmp_path, number, code):
    out = tmp_path / "run"
    process = started("run", "scaffold", *LONG, "--checkpoint-seconds=0.2", f"--out={out}")
    try:
        deadline = time.monotonic() + 60
        while not (out / "metrics.jsonl").exists() or (out / "metrics.jsonl").read_bytes().count(b"\n") < 3:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.005)

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


def test_the_python_example_of_the_readme_prints_what_it_shows(capsys):
    readme = (Path(package.__file__).parents[1] / "README.md").read_text()
    code, shown = re.search(r"```python\n(.*?)```\nprints\n```\n(.*?)```", readme, re.DOTALL).groups()
    exec(compile(code, "README.md", "exec"), {})

    def shape(text):  # accuracies differ in their last digits from one kind of machine to another
        return [re.sub(r"0\.\d+", "#", line) for line in sorted(text.splitlines())]

    assert shape(capsys.readouterr().out) == shape(shown)


def test_the_commands_and_their_python_twins_give_the_same_model():
    headway("run", "moon(mu=5)+fn", *SMALL, "--out=a")
    run = package.run("moon(mu=5)+fn", **SMALL_TASK, out="b")
    assert Path("a/model.safetensors").read_bytes() == (run.path / "model.safetensors").read_bytes()


def test_resume_refuses_an_engine_or_address_that_there_is_not():
    headway("run", "fedavg", *SMALL, "--out=a")
    for words, sentence in [
        (["--engine=loca"], "engine=loca: there is no such engine; use local or ray"),
        (["--engine=local", "--address=h:1"], "address=h:1: only the engine ray has an address; add --engine ray"),
        (["--workers=0"], "workers=0: workers must be auto or a whole number from 1 to 1024"),
    ]:
        end = headway("resume", "a", *words)
        assert (end.code, end.err) == (2, f"headway: {sentence}\n")


def test_a_terminated_personalisation_takes_its_temporary_folder_along(uninterrupted, tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = started("personalise", uninterrupted, "--with=ft(epochs=100000)", env_more={"TMPDIR": str(temporary)})
    try:
        deadline = time.monotonic() + 60
        while not list(temporary.glob("headway-clients-*")):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.terminate()
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143
    assert "Traceback" not in said
    assert list(temporary.iterdir()) == []
