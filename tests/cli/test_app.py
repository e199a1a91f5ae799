"""`headway run` and the whole program as people and scripts use them: what is printed, written, and how it ends."""

import json
import re
from pathlib import Path

import pytest
from calling import ESCAPE, SMALL, SMALL_TASK, headway

import headway as package

pytestmark = pytest.mark.usefixtures("in_tmp")


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


def test_a_bug_is_not_dressed_up_as_bad_input(monkeypatch):
    def broken(what):
        raise ZeroDivisionError

    monkeypatch.setattr("headway.cli.list.listing", broken)
    with pytest.raises(ZeroDivisionError):
        headway("list")


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
