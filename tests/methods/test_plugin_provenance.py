"""Who brings a name: its owner is recorded, nobody else takes it, and a changed owner is refused."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from calling import headway as command
from torch import nn

import headway
from headway.base import registered
from headway.base.errors import CheckpointError, ConfigError, DataError, ModelError, PartitionError, PluginError
from headway.base.wording import for_commands
from headway.methods import plugins
from headway.models import MODELS

NET = """import headway
from torch import nn

def small2(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.ReLU(), nn.Linear(3, classes))
"""
MODEL = NET + "\nheadway.register_model('small2', small2)\n"
REST = """import numpy as np
import headway

def dots():
    return headway.Dataset.of(np.tile(np.eye(4), (10, 1)), np.tile(np.arange(4), 10))

def turns(labels, clients, classes, rng):
    return np.array_split(np.arange(len(labels)), clients)

headway.register_dataset("dots", dots)
headway.register_partition("turns", turns)
"""
SMALL = {"clients": 2, "rounds": 2, "train_size": 60}
OPTIONS = ("--clients=2", "--rounds=2", "--train-size=60", "--quiet")

pytestmark = pytest.mark.usefixtures("in_tmp")


def written(text: str, name: str) -> Path:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return Path(name)


def forget_all() -> None:
    for plugin in list(plugins.PLUGINS.values()):
        plugins.forget(plugin)


def in_new_process(*words: str, code: int = 0, **env: str) -> str:
    done = subprocess.run([*words], capture_output=True, text=True, check=False, env=os.environ | env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def unfinished(out: str) -> bytes:
    model = Path(out, "model.safetensors").read_bytes()
    for name in ("model.safetensors", "summary.json"):
        Path(out, name).unlink()
    return model


def config_of(out: str) -> dict:
    return json.loads(Path(out, "config.json").read_text())


# ---- one owner a name
def test_a_second_plugin_cannot_take_a_model_and_leaves_nothing():
    first = headway.load_plugin(written(MODEL, "a.py"))
    make = MODELS["small2"].make
    with pytest.raises(ModelError, match=r"plugin=b.py: register_model: the name 'small2' is registered by .*a.py; ch"):
        headway.load_plugin(written(MODEL + "headway.register_model('other', small2)", "b.py"))
    assert MODELS["small2"].make is make
    assert "other" not in MODELS
    (record,) = headway.run("fedavg", model="small2", out="r", **SMALL).config["plugins"]
    assert (record["file"], record["sha256"]) == ("a.py", first.sha256)


def test_a_second_plugin_cannot_take_a_data_set_or_a_partition():
    headway.load_plugin(written(REST, "a.py"))
    with pytest.raises(DataError, match=r"register_dataset: the name 'dots' is registered by .*a.py"):
        headway.load_plugin(written(REST, "b.py"))
    with pytest.raises(PartitionError, match=r"register_partition: the name 'turns' is registered by .*a.py"):
        headway.load_plugin(written(REST.replace('"dots"', '"spots"'), "c.py"))
    assert "spots" not in registered.held_by(str(Path("c.py").resolve()), "data")


def test_a_file_and_a_module_replace_what_is_their_own(monkeypatch):
    headway.load_plugin(written(MODEL, "a.py"))
    headway.load_plugin(written(MODEL + "# changed", "a.py"))
    assert set(plugins.known_names()["models"]) == {"small2"}
    headway.register_model("mine", lambda classes: nn.Linear(64, classes))
    headway.register_model("mine", lambda classes: nn.Linear(64, classes), about="again")
    assert MODELS["mine"].about == "again"
    monkeypatch.syspath_prepend("lib")
    written(MODEL.replace("small2'", "third'"), "lib/reloaded_net.py")
    module = importlib.import_module("reloaded_net")
    written(MODEL.replace("small2'", "third'") + "# changed", "lib/reloaded_net.py")
    importlib.reload(module)
    assert plugins.PLUGINS["reloaded_net"].source.endswith("# changed")


def test_a_plugin_that_loads_another_brings_its_own_alone():
    written(REST, "inner.py")
    plugin = headway.load_plugin(written("headway.load_plugin('inner.py')\n".join(["import headway\n", MODEL]), "a.py"))
    assert plugin.brings == {"pieces": (), "models": ("small2",), "data": (), "partitions": ()}
    assert plugins.PLUGINS[str(Path("inner.py").resolve())].brings["data"] == ("dots",)


def test_a_module_that_a_plugin_imports_owns_what_it_registers(monkeypatch):
    monkeypatch.syspath_prepend("lib")
    helper = written(MODEL, "lib/helping_net.py").read_text()
    written(REST + "import helping_net\n", "a.py")
    for text in ("", "# changed"):  # the module is not imported again
        plugin = headway.load_plugin(written(REST + "import helping_net\n" + text, "a.py"))
        assert plugin.brings == {"pieces": (), "models": (), "data": ("dots",), "partitions": ("turns",)}
    run = headway.run("fedavg", model="small2", out="r", **SMALL)
    assert [record["module"] for record in run.config["plugins"]] == ["helping_net"]
    assert plugins.PLUGINS["helping_net"].source == helper


def test_a_plugin_may_bring_nothing_but_what_it_imports(monkeypatch):
    monkeypatch.syspath_prepend("lib")
    written(MODEL, "lib/helping_alone.py")
    for text in ("", "# changed"):
        headway.load_plugin(written("import helping_alone" + text, "a.py"))
    assert "small2" in MODELS


# ---- registered from Python
def script(place: str) -> str:
    return (
        f"import headway\nfrom {place} import small2\nheadway.register_model('small2', small2)\n"
        "headway.run('fedavg', model='small2', clients=2, rounds=2, train_size=60, out='r')\n"
    )


def test_a_function_of_a_module_is_recorded_by_its_module():
    env = {"PYTHONPATH": str(Path("lib").resolve())}
    written(NET, "lib/my_nets.py")
    in_new_process(sys.executable, "-c", script("my_nets"), **env)
    (record,) = config_of("r")["plugins"]
    assert (record["module"], record["models"]) == ("my_nets", ["small2"])
    assert record["functions"] == {"models": {"small2": "small2"}}
    assert config_of("r")["objects"] == []
    model = unfinished("r")
    in_new_process(sys.executable, "-m", "headway", "resume", "r", "--quiet", **env)
    assert Path("r/model.safetensors").read_bytes() == model
    unfinished("r")
    in_new_process(sys.executable, "-m", "headway", "resume", "r", "--quiet")  # the file is there, if not the module
    assert Path("r/model.safetensors").read_bytes() == model


def test_a_module_that_registers_when_it_is_imported_is_recorded(monkeypatch):
    monkeypatch.syspath_prepend("lib")
    written(REST, "lib/own_data.py")
    importlib.import_module("own_data")
    run = headway.run("fedavg", data="dots", partition="turns", clients=2, rounds=1, out="r")
    (record,) = run.config["plugins"]
    assert (record["module"], record["data"], record["partitions"]) == ("own_data", ["dots"], ["turns"])
    assert "functions" not in record


def local_model() -> None:
    headway.register_model("small2", lambda classes: nn.Sequential(nn.Flatten(), nn.Linear(64, classes)))


def test_what_this_process_alone_has_is_noted_as_an_object():
    local_model()
    headway.register_partition("mine", lambda labels, clients, classes, rng: [range(30), range(30, 60)])
    run = headway.run("fedavg", model="small2", partition="mine", out="r", **SMALL)
    assert run.config["objects"] == ["model", "partition"]
    assert run.config["registered"] == ["model", "partition"]
    assert "plugins" not in run.config
    unfinished("r")
    headway.resume("r")  # here it is known
    unfinished("r")
    plugins.remove_new({part: set() for part in registered.PARTS})
    with pytest.raises(CheckpointError) as refused:
        headway.resume("r")
    assert str(refused.value) == (
        "r needs the model 'small2', which was registered in a Python process and stands in no file that config.json "
        "could name; repeat the same call of headway.run, which continues it, or name a file that registers it: "
        "headway.load_plugin('FILE.py')"
    )
    assert "or name a file that registers it: --plugin FILE.py" in command("resume", "r").err


def test_a_data_set_of_this_process_alone_is_noted_too():
    headway.register_dataset("dots", lambda: headway.Dataset.of([[0.0], [1.0]] * 20, [0, 1] * 20))
    run = headway.run("fedavg", data="dots", clients=2, rounds=1, out="r")
    assert run.config["registered"] == ["data"]
    plugins.remove_new({part: set() for part in registered.PARTS})
    with pytest.raises(CheckpointError, match="needs the data 'dots', which was registered in a Python process"):
        headway.Run("r").model()


def test_a_cluster_refuses_a_model_of_this_process_alone():
    local_model()
    with pytest.raises(ConfigError, match=r"the model 'small2' was registered in this process alone"):
        headway.run("fedavg", model="small2", engine="ray", **SMALL)


# ---- a changed plugin
def test_a_model_is_not_read_into_a_changed_network():
    headway.load_plugin(written(MODEL, "a.py"))
    run = headway.run("fedavg", model="small2", out="r", **SMALL)
    assert headway.Run("r").model() is not None
    headway.load_plugin(written(MODEL.replace("ReLU", "Tanh"), "a.py"))
    with pytest.raises(CheckpointError, match=r"r was made from something else \(the plugin a.py .* put the old file"):
        headway.Run("r").model()
    assert "ReLU" in str(run.model())  # its task holds the network it was trained in
    forget_all()
    Path("a.py").unlink()
    with pytest.raises(PluginError, match=r"or name it: headway.load_plugin\('a.py'\)"):
        headway.Run("r").model()
    with for_commands(), pytest.raises(PluginError, match=r"or name it: --plugin a.py"):
        headway.Run("r").model()


def test_a_renamed_file_with_the_same_bytes_is_the_same_plugin():
    written(MODEL, "a.py")
    assert command("run", "fedavg", "--model=small2", "--out=r", "--plugin=a.py", *OPTIONS).code == 0
    model = unfinished("r")
    forget_all()
    Path("a.py").rename("renamed.py")
    done = command("resume", "r", "--plugin", "renamed.py", "--quiet")
    assert done.code == 0, done.err
    assert Path("r/model.safetensors").read_bytes() == model


def test_an_identity_with_names_is_still_read():
    headway.load_plugin(written(MODEL, "a.py"))
    headway.run("fedavg", model="small2", out="r", **SMALL)
    config = config_of("r")
    sha = config["identity"]["plugins"]
    config["identity"]["plugins"] = f"a.py {sha}"
    Path("r/config.json").write_text(json.dumps(config))
    unfinished("r")
    headway.resume("r")
    config["identity"]["plugins"] = f"a.py {sha[::-1]}"
    Path("r/config.json").write_text(json.dumps(config))
    unfinished("r")
    with pytest.raises(CheckpointError, match=rf"\(plugins: a.py {sha} here, {sha[::-1]} there\); put the old file of"):
        headway.resume("r")


# ---- check
def test_check_takes_plugins():
    written(MODEL, "a.py")
    piece = "import headway\nclass Plain(headway.Piece):\n    'It does nothing.'\n    name, slot = 'plain', 'reg'\n"
    written(piece, "plain.py")
    written(piece.replace("lain", "late"), "plate.py")
    done = command("check", "plain.py", "--plugin", "plate.py", "--recipe", "plain+fn", "--quiet")
    assert done.code == 0, done.out + done.err
    assert "14 laws tried: all hold" in done.out


# ---- packages
@pytest.fixture
def package(in_tmp):
    """An installed package whose entry point names a module."""

    def made(text: str) -> dict[str, str]:
        written(text, "site/bringing.py")
        written("Metadata-Version: 2.1\nName: bringing\nVersion: 1.2\n", "site/bringing-1.2.dist-info/METADATA")
        written("[headway.methods]\nall = bringing\n", "site/bringing-1.2.dist-info/entry_points.txt")
        return {"PYTHONPATH": str(Path("site").resolve())}

    return made


def test_a_package_brings_models_data_sets_and_partitions(package):
    env = package(MODEL + REST)
    start = (sys.executable, "-m", "headway")
    in_new_process(*start, "run", "fedavg", "--partition=turns", "--model=small2", "--out=r", *OPTIONS, **env)
    (record,) = config_of("r")["plugins"]
    assert (record["package"], record["module"], record["models"]) == ("bringing 1.2", "bringing", ["small2"])
    unfinished("r")
    in_new_process(*start, "resume", "r", "--quiet", **env)
    in_new_process(*start, "run", "fedavg", "--data=dots", "--out=d", "--clients=2", "--rounds=1", "--quiet", **env)
    for what, name in (("models", "small2"), ("data", "dots"), ("partitions", "turns")):
        assert name in in_new_process(*start, "list", what, **env)


@pytest.mark.parametrize("option", ["--model=smal2", "--data=dotss", "--partition=turnz"])
def test_a_package_that_fails_is_named_where_a_name_is_unknown(package, option, monkeypatch):
    env = package(MODEL + "1 / 0\n")
    said = in_new_process(sys.executable, "-m", "headway", "run", "fedavg", option, *OPTIONS, code=2, **env)
    assert "; the pieces of the package bringing are left out (ZeroDivisionError: division by zero)" in said
    assert said.count("\n") == 1


def test_a_package_that_fails_leaves_nothing_and_is_named_for_an_unknown_piece(package):
    env = package(MODEL + "1 / 0\n")
    start = (sys.executable, "-m", "headway")
    said = in_new_process(*start, "run", "halved", *OPTIONS, code=2, **env)
    assert "there is no piece or recipe 'halved'" in said
    assert "the pieces of the package bringing are left out (ZeroDivisionError" in said
    listed = in_new_process(*start, "list", "models", **env)
    assert "small2" not in listed
    assert "note: the pieces of the package bringing are left out" in listed
