"""Methods, models, data sets and partitions from a user's own file, module or package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from calling import headway as command

import headway
from headway.base.errors import ConfigError, PluginError, RecipeError
from headway.methods import REGISTRY, plugins, recorded_plugins

HALVED = '''"""Half steps: a paper of our own (us, 2026)."""
from dataclasses import dataclass
from headway import Piece, setting

@dataclass(frozen=True)
class Halved(Piece):
    """Clients make a part of each step."""

    name, slot, paper = "halved", "post", "@misc{us2026, title={Half steps}}"
    part: float = setting(0.5, "share of the step", gt=0, neutral=1.0)

    def correct(self, g, local):
        return g * self.part
'''
PARTS = """import numpy as np
from torch import nn
import headway

def dots():
    return headway.Dataset.of(np.tile(np.eye(4), (10, 1)), np.tile(np.arange(4), 10))

headway.register_dataset("dots", dots)
def thin(classes):
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, classes))

def turns(labels, clients, classes, rng):
    return np.array_split(np.arange(len(labels)), clients)

headway.register_model("thin", thin)
headway.register_partition("turns", turns)
"""
SMALL = {"clients": 2, "rounds": 2, "train_size": 60, "model": "mlp_small"}


pytestmark = pytest.mark.usefixtures("in_tmp")


def written(text: str, name: str = "halved.py") -> Path:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return Path(name)


# ---- files
def test_a_file_brings_its_pieces():
    plugin = headway.load_plugin(written(HALVED))
    assert plugin.brings == {"pieces": ("halved",), "models": (), "data": (), "partitions": ()}
    assert str(headway.recipe("scaffold+halved(0.25)")) == "scaffold+halved(part=0.25)"


def test_it_is_recorded_where_it_is_used_and_nowhere_else():
    headway.load_plugin(written(HALVED))
    used = headway.run("halved", out="used", **SMALL)
    plain = headway.run("fedavg", out="plain", **SMALL)
    (record,) = used.config["plugins"]
    assert (record["file"], record["pieces"]) == ("halved.py", ["halved"])
    assert used.config["identity"]["plugins"] == record["sha256"][:16]
    assert "plugins" not in plain.config
    assert "plugins" not in plain.config["identity"]


def test_an_own_model_data_set_and_partition_are_recorded_too():
    headway.load_plugin(written(PARTS, "parts.py"))
    run = headway.run("fedavg", data="dots", model="thin", partition="turns", clients=2, rounds=1, out="r")
    (record,) = run.config["plugins"]
    assert {k: record[k] for k in ("models", "data", "partitions")} == {
        "models": ["thin"], "data": ["dots"], "partitions": ["turns"],
    }  # fmt: skip


def test_a_partition_in_capitals_is_recorded_too():
    headway.load_plugin(written(PARTS, "parts.py"))
    run = headway.run("fedavg", partition=" Turns ", out="r", **SMALL)
    assert [record["file"] for record in run.config["plugins"]] == ["parts.py"]


def test_all_that_was_registered_since_can_be_removed():
    before = plugins.known_names()
    plugins.load_plugin(written(HALVED))
    plugins.load_plugin(written(PARTS, "parts.py"))
    assert all(new - old for new, old in zip(plugins.known_names().values(), before.values(), strict=True))
    plugins.remove_new(before)
    assert plugins.known_names() == before


def test_a_file_that_has_not_changed_is_run_once():
    path = written("print('once')\n" + HALVED)
    assert headway.load_plugin(path) is headway.load_plugin(str(path.resolve()))


def test_a_file_that_has_changed_takes_the_place_of_its_old_self():
    headway.load_plugin(written(HALVED))
    headway.load_plugin(written(HALVED.replace('"halved"', '"thirds"')))
    assert str(headway.recipe("thirds")) == "fedavg+thirds"
    with pytest.raises(RecipeError, match="there is no piece or recipe 'halved'"):
        headway.recipe("halved")


BAD = {
    "missing.py": (None, "there is no such file; paths start at"),
    "notes.txt": ("hello", "it is no Python file; give the path of a Python file"),
    "syntax.py": ("x = = 1", "it cannot be run (SyntaxError: invalid syntax at line 1); correct the file"),
    "raises.py": (HALVED + "\n1 / 0\n", "it cannot be run (ZeroDivisionError: division by zero at line 15); correct"),
    "exits.py": ("raise SystemExit(3)", "it cannot be run (SystemExit: 3 at line 1); correct the file"),
    "empty.py": ("x = 1", "it defines nothing that headway can use; define a class that derives from headway.Piece"),
    "taken.py": (HALVED.replace('"halved"', '"fedavg"'), "fedavg: there is a piece or recipe of this name"),
    "alias.py": (HALVED.replace('"halved"', '"fedprox"'), "fedprox: there is a piece or recipe of this name"),
    "slot.py": (HALVED.replace('"post"', '"extra"'), "slot='extra' is none of base, head, loss"),
    "name.py": (HALVED.replace('"halved"', '"Half step"'), "name='Half step' cannot be used in a recipe"),
    "plain.py": (HALVED.replace("@dataclass(frozen=True)\n", ""), "its setting part is not read; put @dataclass"),
    "model.py": ("import headway\nheadway.register_model('mlp', int)", "the name 'mlp' is built in"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_one_sentence_and_leaves_nothing(name):
    text, said = BAD[name]
    if text is not None:
        written(text, name)
    before = REGISTRY.names(), set(plugins.PLUGINS)
    done = command("run", "fedavg", "--plugin", name)
    err = done.err
    assert (done.code, err.count("\n")) == (2, 1)
    assert err.startswith(f"headway: plugin={name}: ")
    assert said in err
    assert (REGISTRY.names(), set(plugins.PLUGINS)) == before


def test_two_files_cannot_bring_the_same_name():
    headway.load_plugin(written(HALVED))
    with pytest.raises(RecipeError, match=r"plugin=other.py: halved: there is a piece or recipe of this name"):
        headway.load_plugin(written(HALVED, "other.py"))


# ---- the command line
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("list",), "Clients make a part of each step."),
        (("explain", "scaffold+halved"), "correct      chain  scaffold halved"),
        (("explain", "halved", "--privacy"), "the model trained on the data"),
        (("cite", "halved"), "@misc{us2026, title={Half steps}}"),
        (("compare", "fedavg", "halved", "--clients=2", "--rounds=1", "--train-size=60", "--out=c"), "halved"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_commands_take_plugins(words, said):
    written(HALVED)
    done = command(*words, "--plugin", "halved.py")
    assert done.code == 0, done.err
    assert " ".join(said.split()) in " ".join(done.out.split())


def run_halved(out: str, *more: str) -> None:
    words = ("run", "halved", "--clients=2", "--rounds=2", "--train-size=60", f"--out={out}", "--quiet")
    without_plugins(*words, "--plugin", "halved.py", *more)


def in_new_process(*words: str, code: int = 0, **env: str) -> str:
    """A process that has loaded no plugin yet."""
    done = subprocess.run(
        [sys.executable, "-m", "headway", *words], capture_output=True, text=True, check=False, env=os.environ | env
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def without_plugins(*words: str, code: int = 0) -> str:
    """The same in this process, after it has forgotten its plugins; starting a process takes seconds."""
    for plugin in list(plugins.PLUGINS.values()):
        plugins.forget(plugin)
    done = command(*words)
    assert done.code == code, done.err
    return done.out + done.err


def unfinished(out: str) -> bytes:
    """Take the end of a run away; returns the model it had."""
    model = Path(out, "model.safetensors").read_bytes()
    for name in ("model.safetensors", "summary.json"):
        Path(out, name).unlink()
    return model


def test_a_run_is_resumed_calibrated_and_reported_without_naming_the_file_again():
    written(HALVED)
    run_halved("runs/r")
    model = unfinished("runs/r")
    in_new_process("resume", "runs/r", "--quiet")
    assert Path("runs/r/model.safetensors").read_bytes() == model
    without_plugins("calibrate", "runs/r", "--with", "ccvr(epochs=1)", "--quiet")
    without_plugins("report", "runs/r")
    assert "correction of the gradient" in Path("runs/r/report.html").read_text()


def test_a_run_finds_the_file_from_another_folder(monkeypatch):
    written(HALVED)
    run_halved("runs/r")
    model = unfinished("runs/r")
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    without_plugins("resume", "../runs/r", "--quiet")
    assert Path("../runs/r/model.safetensors").read_bytes() == model


def test_a_file_that_is_gone_can_be_named_at_its_new_place():
    written(HALVED)
    run_halved("r")
    unfinished("r")
    Path("new").mkdir()
    Path("halved.py").rename("new/halved.py")
    said = without_plugins("resume", "r", code=2)
    assert "r needs the plugin halved.py (pieces halved), which is not there" in said
    assert said.rstrip().endswith("put it back, or name it: --plugin halved.py")
    without_plugins("resume", "r", "--plugin", "new/halved.py", "--quiet")


def test_a_file_that_has_changed_is_refused():
    written(HALVED)
    run_halved("r")
    written(HALVED.replace("0.5", "0.4"))
    unfinished("r")
    assert "put the old file of the plugin back" in without_plugins("resume", "r", code=2)
    again = ("run", "halved", "--clients=2", "--rounds=2", "--train-size=60", "--out=r", "--plugin=halved.py")
    assert "it holds another run (plugins: halved.py" in without_plugins(*again, code=2)


# ---- register
def test_register_makes_a_class_known_and_returns_it():
    @headway.register
    class Plain(headway.Piece):
        name, slot = "plain", "reg"

    assert Plain.__name__ == "Plain"
    assert type(headway.recipe("plain").pieces[1]) is Plain


def defined(half: float) -> type[headway.Piece]:
    class Plain(headway.Piece):
        name, slot = "plain", "reg"

        def correct(self, g, local):
            return g * half

    return headway.register(Plain)


def test_a_class_that_is_defined_again_takes_the_place_of_its_old_self():
    first, second = defined(0.5), defined(0.25)
    assert first is not second
    assert type(headway.recipe("plain").pieces[1]) is second


def test_what_is_no_piece_cannot_be_registered():
    with pytest.raises(RecipeError, match=r"it is not a piece; give a class that derives from headway.Piece"):
        headway.register(int)


def test_a_class_of_an_imported_module_is_found_by_its_module(monkeypatch):
    written(HALVED + "\nimport headway\nheadway.register(Halved)\n", "lib/my_methods.py")
    code = "import my_methods, headway; headway.run('halved', clients=2, rounds=2, train_size=60, out='r')"
    env = os.environ | {"PYTHONPATH": str(Path("lib").resolve())}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    (record,) = json.loads(Path("r/config.json").read_text())["plugins"]
    assert record["module"] == "my_methods"
    model = unfinished("r")
    in_new_process("resume", "r", "--quiet", PYTHONPATH=str(Path("lib").resolve()))
    assert Path("r/model.safetensors").read_bytes() == model


def test_a_class_of_the_script_itself_is_continued_by_the_same_call_alone():
    script = HALVED + (
        "\nimport headway\nheadway.register(Halved)\n"
        "print(headway.run('halved', clients=2, rounds=2, train_size=60, out='r').config['objects'])\n"
    )
    written(script, "script.py")
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=True)
    assert done.stdout == "['recipe']\n"
    unfinished("r")
    assert "was a Python object, which cannot be built" in in_new_process("resume", "r", code=2)
    subprocess.run([sys.executable, "script.py"], capture_output=True, check=True)
    assert Path("r/summary.json").exists()


def test_a_cluster_refuses_a_class_of_this_process_alone():
    with pytest.raises(ConfigError, match=r"put its class into a file and call headway.load_plugin"):
        headway.run(defined(0.5)(), engine="ray", **SMALL)


# ---- workers elsewhere
def test_a_worker_runs_what_it_is_sent_and_needs_no_file():
    written(HALVED)
    headway.load_plugin("halved.py")
    sent = json.loads(json.dumps(recorded_plugins.sent(plugins.PLUGINS.values())))
    for plugin in list(plugins.PLUGINS.values()):
        plugins.forget(plugin)
    Path("halved.py").unlink()
    recorded_plugins.receive(sent)
    assert str(headway.recipe("halved")) == "fedavg+halved"
    assert [p.record() for p in plugins.PLUGINS.values()] == [
        {k: v for k, v in message.items() if k != "source"} for message in sent
    ]


def test_a_worker_that_has_another_version_takes_the_one_it_is_sent():
    headway.load_plugin(written(HALVED))
    sent = recorded_plugins.sent(plugins.PLUGINS.values())
    headway.load_plugin(written(HALVED.replace("0.5", "0.4")))
    recorded_plugins.receive(sent)
    assert headway.recipe("halved").pieces[1].part == 0.5


def test_a_worker_without_the_package_says_what_to_install():
    message = {
        "package": "nosuch 1.0",
        "module": "nosuch",
        "sha256": "0",
        "pieces": ["halved"],
        "source": "",
        "file": "",
    }
    with pytest.raises(PluginError, match=r"the plugin nosuch 1.0 \(pieces halved\), .* install nosuch 1.0"):
        recorded_plugins.receive([message])


# ---- packages
@pytest.fixture
def package(in_tmp):
    """An installed package with an entry point, as pip leaves it."""

    def made(text: str = HALVED) -> dict[str, str]:
        written(text, "site/halving.py")
        written("Metadata-Version: 2.1\nName: halving\nVersion: 1.2\n", "site/halving-1.2.dist-info/METADATA")
        written("[headway.methods]\nhalved = halving:Halved\n", "site/halving-1.2.dist-info/entry_points.txt")
        return {"PYTHONPATH": str(Path("site").resolve())}

    return made


def test_a_package_brings_pieces_by_being_installed(package):
    env = package()
    assert "Clients make a part of each step." in " ".join(in_new_process("list", "--json", **env).split())
    in_new_process("run", "halved", "--clients=2", "--rounds=2", "--train-size=60", "--out=r", "--quiet", **env)
    (record,) = json.loads(Path("r/config.json").read_text())["plugins"]
    assert (record["package"], record["module"], record["pieces"]) == ("halving 1.2", "halving", ["halved"])
    assert "file" not in record
    model = unfinished("r")
    in_new_process("resume", "r", "--quiet", **env)
    assert Path("r/model.safetensors").read_bytes() == model
    unfinished("r")
    assert "install halving 1.2" in in_new_process("resume", "r", code=2)


def test_a_package_that_fails_is_told_about_and_left_out(package):
    env = package("1 / 0\n")
    said = in_new_process("list", **env)
    assert "note: the pieces of the package halving are left out (ZeroDivisionError: division by zero)" in said
    assert "there is no piece or recipe 'halved'" in in_new_process("run", "halved", code=2, **env)


def test_a_changed_run_of_a_package_is_refused(package):
    env = package()
    in_new_process("run", "halved", "--clients=2", "--rounds=2", "--train-size=60", "--out=r", "--quiet", **env)
    package(HALVED.replace("0.5", "0.4"))
    unfinished("r")
    said = in_new_process("resume", "r", code=2, **env)
    assert "was made from something else (plugins: halving 1.2" in said


def test_a_run_from_before_there_were_plugins_is_continued():
    headway.load_plugin(written(HALVED))
    config = headway.run("halved", out="r", **SMALL).config
    del config["identity"]["plugins"], config["plugins"]
    Path("r/config.json").write_text(json.dumps(config))
    model = unfinished("r")
    headway.resume("r")
    assert Path("r/model.safetensors").read_bytes() == model
