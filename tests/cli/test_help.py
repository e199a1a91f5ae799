"""Help pages: every command, option, choice and default."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from calling import headway

import headway as package
from headway.cli.app import COMMANDS
from headway.cli.options import RUN_OPTIONS
from headway.runs.runner import Options
from headway.training.settings import Settings

pytestmark = pytest.mark.usefixtures("in_tmp")


@pytest.mark.parametrize("command", ["run", "compare"])
def test_every_setting_is_an_option_of_run_and_compare(command):
    told = headway(command, "--help").out
    for name in (*Settings.model_fields, *RUN_OPTIONS, "set", "json", "quiet"):
        assert f"  --{name.replace('_', '-')}" in told.replace("-q, --quiet", "--quiet")


def test_help_of_every_command():
    told = headway("--help")
    assert told.code == 0
    assert "..." not in told.out.replace("[ARGS]...", "")  # no sentence is cut
    for name, about in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(about)}$", told.out, re.MULTILINE)
        page = headway(name, "--help").out
        assert page.startswith(f"Usage: headway {name} ")
        assert f"\n  {about}\n" in page
        assert headway(name, "-h").out == page
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


def test_help_does_not_wait_for_torch():
    """Modules that take seconds are loaded by the command that needs them."""
    code = "import sys; from headway import cli; sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=Path(package.__file__).parents[1], timeout=60).returncode == 0
    )
