"""Options and arguments that are refused: one sentence, exit code 2, nothing written."""

from pathlib import Path

import calling
import pytest
from calling import SMALL, files, headway

from headway.cli.options import RUN_OPTIONS
from headway.runs.run import Run
from headway.training.settings import Settings

pytestmark = pytest.mark.usefixtures("in_tmp")


def test_set_is_the_same_as_the_option():
    headway("run", "fedavg", *SMALL, "--lr=0.2", "--out=a")
    headway("run", "fedavg", *SMALL, "--set", "lr=0.2", "--out=b")
    assert Path("a/model.safetensors").read_bytes() == Path("b/model.safetensors").read_bytes()
    assert headway("run", "fedavg", *SMALL, "--set", "batch-size=16", "--set", "clip_norm=none", "--out=c").code == 0
    assert Run(Path("c")).config["settings"]["batch_size"] == 16


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


TEXTS = [name for name, field in Settings.model_fields.items() if field.annotation is not bool]


@pytest.mark.parametrize("name", [*TEXTS, *RUN_OPTIONS])
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


def test_resume_refuses_an_engine_or_address_that_there_is_not():
    headway("run", "fedavg", *SMALL, "--out=a")
    for words, sentence in [
        (["--engine=loca"], "engine=loca: there is no such engine; use local or ray"),
        (["--engine=local", "--address=h:1"], "address=h:1: only the engine ray has an address; add --engine ray"),
        (["--workers=0"], "workers=0: workers must be auto or a whole number from 1 to 1024"),
    ]:
        end = headway("resume", "a", *words)
        assert (end.code, end.err) == (2, f"headway: {sentence}\n")


def test_the_word_none_stays_a_word_where_a_setting_knows_it(tmp_path):
    """`--set augment=none` was taken for no value at all and refused."""
    done = calling.headway("run", "fedavg", *calling.SMALL, "--set", "augment=none", "--json", "--out", tmp_path / "r")
    assert done.code == 0, done.err
