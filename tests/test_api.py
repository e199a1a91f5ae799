"""headway.run, headway.compare and headway.recipe: the commands from Python, with objects where names would do."""

import functools
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from calling import SMALL, SMALL_TASK, headway
from torch import nn

import headway as fl
from headway.base.errors import CheckpointError, ConfigError, HeadwayError, ModelError, RecipeError
from headway.data.arrays import build as own_data
from headway.runs.runner import Progress


class Small(nn.Module):
    """The user's own network, with a classifier that is not last in the order of its layers."""

    def __init__(self, classes, shape, width=16):
        super().__init__()
        self.out = nn.Linear(width, classes)
        self.first = nn.Linear(int(np.prod(shape)), width)

    def forward(self, x):
        return self.out(torch.relu(self.first(x.flatten(1))))


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def blobs():
    """Three well separated clouds of points: the user's own Dataset."""
    rng = np.random.RandomState(0)
    y = np.arange(150) % 3
    x = rng.randn(150, 6) + 4 * np.eye(3, 6)[y]
    return own_data("blobs", x[:120], y[:120], x[120:], y[120:])


TABLE = {"clients": 3, "rounds": 2, "partition": "dir(1)", "model": "mlp_small"}


def accuracy(net, x, y):
    with torch.no_grad():
        return float((net(x).argmax(1) == y).float().mean())


# ---- the same names
def test_the_public_names_are_these():
    assert set(fl.__all__) == {
        "Comparison", "Dataset", "Options", "Piece", "Recipe", "Run", "Task", "compare", "load_plugin", "recipe",
        "register", "register_dataset", "register_model", "register_partition", "resume", "run", "runs", "setting",
    }  # fmt: skip
    assert all(callable(getattr(fl, name)) for name in fl.__all__)
    assert sorted(dir(fl)) == sorted(fl.__all__)
    assert fl.__version__
    with pytest.raises(AttributeError, match="module 'headway' has no attribute 'runn'"):
        fl.runn  # noqa: B018


def test_run_without_out_goes_where_the_command_goes():
    run = fl.run("fedavg", **SMALL_TASK)
    assert headway("run", "fedavg", *SMALL, "--json").json["run"] == str(run.path)


def test_compare_without_out_goes_where_the_command_goes():
    result = fl.compare(["fedavg", "fedprox"], seeds=(0, 1), **SMALL_TASK | {"rounds": 1})
    end = headway("compare", "fedavg", "fedprox", *SMALL, "--rounds=1", "--seeds=0,1")
    assert f"in {result.path}\n" in end.out


def test_run_says_nothing(capsys):
    fl.run("fedavg", **SMALL_TASK)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: fl.run("scafold"), RecipeError, "did you mean 'scaffold'"),
        (lambda: fl.run("fedavg", lr=float("nan")), ConfigError, "lr=nan: lr must be a finite number above 0"),
        (lambda: fl.run("fedavg", roundz=3), ConfigError, "did you mean 'rounds'"),
        (lambda: fl.run("fedavg", model=3), ConfigError, "model=3: give a name"),
        (lambda: fl.run("fedavg", model="nosuch"), ModelError, "model 'nosuch' is unknown"),
        (lambda: fl.run("fedavg", data="nosuch"), HeadwayError, "data 'nosuch'"),
        (lambda: fl.compare([]), ConfigError, "recipes: none was given"),
        (lambda: fl.compare(["fedavg", "fedavg"]), ConfigError, "fedavg is named twice"),
        (lambda: fl.compare(["fedavg"], seeds=[]), ConfigError, "seeds="),
        (lambda: fl.compare(["fedavg"], seeds=[1, 1]), ConfigError, "seeds=1,1"),
        (lambda: fl.recipe("etf+babu"), RecipeError, "keep one of the two"),
        (lambda: fl.resume(Path("nosuch")), CheckpointError, "nosuch is not a run directory"),
    ],
)
def test_mistakes_are_exceptions_with_the_sentence_of_the_command(call, kind, said):
    with pytest.raises(kind, match=said.replace("(", r"\(")):
        call()
    assert not Path("runs").exists()


# ---- what a run gives back
def test_metrics_are_a_table_of_rows_and_columns():
    run = fl.run("fedavg", **SMALL_TASK)
    assert len(run.metrics) == 2
    assert run.metrics["round"] == [1, 2]
    assert run.metrics["global_acc"] == [row["global_acc"] for row in run.metrics]
    assert run.metrics[-1]["global_acc"] == run.summary["last"]
    with pytest.raises(KeyError, match="there is no column 'global_ac'; did you mean 'global_acc'"):
        run.metrics["global_ac"]


@pytest.mark.parametrize("recipe", ["fedavg", "ccvr(epochs=3)", "fedetf", "fedbabu", "fedfn"])
def test_the_model_predicts_what_the_summary_says(recipe):
    run = fl.run(recipe, **SMALL_TASK)
    data = run.task.dataset
    assert accuracy(run.model(), data.x_test, data.y_test) == pytest.approx(run.summary["global_acc"], abs=1e-6)


@pytest.mark.parametrize("recipe", ["fedper", "fedrep", "fedtc", "fedavg+ft"])
def test_a_personal_model_predicts_what_the_summary_says(recipe):
    run = fl.run(recipe, **SMALL_TASK)
    for k, wanted in run.summary["personal"]["per_client"].items():
        net = run.personal(int(k))
        assert accuracy(net.personal, *run.task.test(int(k))) == pytest.approx(wanted, abs=1e-6)


def test_a_run_opened_later_gives_the_same_model():
    run = fl.run("fedper+ft", **SMALL_TASK)
    later = fl.Run(run.path)
    for first, second in ((run.model(), later.model()), (run.personal(1), later.personal(1))):
        assert all(torch.equal(a, b) for a, b in zip(first.tensors().values(), second.tensors().values(), strict=True))


def test_asking_for_the_model_twice_gives_two_nets():
    run = fl.run("fedavg", **SMALL_TASK)
    first = run.model()
    with torch.no_grad():
        next(first.parameters()).zero_()
    assert next(run.model().parameters()).abs().sum() > 0


# ---- own data
def test_own_data_as_an_object(blobs):
    run = fl.run("fedavg", data=blobs, **TABLE | {"partition": "iid", "rounds": 5, "lr": 0.2})
    assert run.config["settings"]["data"] == "blobs"
    assert run.config["identity"]["data_hash"] == blobs.hash()
    assert run.summary["global_acc"] > 0.8
    assert accuracy(run.model(), blobs.x_test, blobs.y_test) == pytest.approx(run.summary["global_acc"], abs=1e-6)


def test_own_data_as_a_path_and_as_an_object_give_the_same_model(blobs):
    arrays = {name: tensor.numpy() for name, tensor in blobs.tensors().items()}
    np.savez("blobs.npz", **arrays)
    a = fl.run("fedavg", data=blobs, **TABLE, out="a")
    b = fl.run("fedavg", data="blobs.npz", **TABLE, out="b")
    assert (a.path / "model.safetensors").read_bytes() == (b.path / "model.safetensors").read_bytes()


def test_a_run_on_an_object_opened_without_it_says_what_to_do(blobs):
    run = fl.run("fedavg", data=blobs, **TABLE)
    with pytest.raises(CheckpointError, match=r"cannot be built from config\.json .*headway\.run gave back"):
        fl.Run(run.path).model()
    assert fl.Run(run.path, run.task).model()


def test_other_data_of_the_same_name_is_another_run(blobs):
    fl.run("fedavg", data=blobs, **TABLE, out="a")
    other = own_data("blobs", blobs.x.numpy() + 1, blobs.y.numpy(), blobs.x_test.numpy(), blobs.y_test.numpy())
    with pytest.raises(CheckpointError, match=r"it holds another run .*data blobs is not the same"):
        fl.run("fedavg", data=other, **TABLE, out="a")


def test_resume_takes_the_task_of_a_run_on_objects(blobs):
    run = fl.run("scaffold", data=blobs, **TABLE, out="a", options=fl.Options(checkpoint_seconds=0))
    whole = (run.path / "model.safetensors").read_bytes()
    for name in ("summary.json", "model.safetensors", "checkpoint/round-000002.json"):
        (run.path / name).unlink()
    fl.resume(run.path, task=run.task)
    assert (run.path / "model.safetensors").read_bytes() == whole


# ---- own networks
def test_own_network_as_a_class():
    run = fl.run("fedavg", **SMALL_TASK | {"model": Small})
    assert run.config["settings"]["model"] == f"{__name__}:Small"
    assert run.metrics["bytes_up"] == [3 * 4 * (64 * 16 + 16 + 16 * 10 + 10)] * 2
    data = run.task.dataset
    assert accuracy(run.model(), data.x_test, data.y_test) == pytest.approx(run.summary["global_acc"], abs=1e-6)
    assert accuracy(fl.Run(run.path).model(), data.x_test, data.y_test) == pytest.approx(run.summary["global_acc"])


def test_own_network_as_an_object_starts_from_its_weights_and_is_not_touched():
    torch.manual_seed(0)
    net = Small(10, (1, 8, 8), width=12)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    run = fl.run("fedavg", **SMALL_TASK | {"model": net})
    assert run.metrics["bytes_up"] == [3 * 4 * (64 * 12 + 12 + 12 * 10 + 10)] * 2
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    first = run.task.first_params(fl.recipe("fedavg"))
    assert torch.equal(first["body.inner.first.weight"], before["first.weight"])
    assert torch.equal(first["head.weight"], before["out.weight"])


def test_own_network_from_a_function():
    run = fl.run("fedavg", **SMALL_TASK | {"model": functools.partial(Small, width=8)})
    assert run.metrics["bytes_up"] == [3 * 4 * (64 * 8 + 8 + 8 * 10 + 10)] * 2


@pytest.mark.parametrize("recipe", ["fedetf", "fedbabu+ft", "fedper", "fedfn", "moon", "ccvr(epochs=3)"])
def test_recipes_replace_the_classifier_of_an_own_network(recipe):
    run = fl.run(recipe, **SMALL_TASK | {"model": Small, "rounds": 1})
    assert run.summary["failed"] is None


def test_own_network_from_a_file_is_the_same_as_from_python():
    shutil.copy(__file__, "mine.py")
    a = fl.run("fedavg", **SMALL_TASK | {"model": "mine.py:Small"}, out="a")
    b = fl.run("fedavg", **SMALL_TASK | {"model": Small}, out="b")
    assert (a.path / "model.safetensors").read_bytes() == (b.path / "model.safetensors").read_bytes()


# ---- compare
def test_compare_gives_rows_with_mean_and_spread():
    result = fl.compare(["fedavg", "fedprox(mu=0.1)"], seeds=(0, 1), **SMALL_TASK, out="c")
    row = result["fedprox(mu=0.1)"]
    accs = [run.summary["global_acc"] for run in row.runs]
    assert [run.config["settings"]["seed"] for run in row.runs] == [0, 1]
    assert row.values["global"] == accs
    assert row.mean("global") == pytest.approx((accs[0] + accs[1]) / 2)
    assert row.std("global") == pytest.approx(abs(accs[0] - accs[1]) / 2)  # ddof 0, two values
    assert [r.mean("global") for r in result.rows] == sorted((r.mean("global") for r in result.rows), reverse=True)
    with pytest.raises(KeyError):
        result["scaffold"]


def test_compare_on_own_objects_gives_runs_whose_models_can_be_read(blobs):
    result = fl.compare(["fedavg", "fedper"], data=blobs, model=Small, clients=3, rounds=1, partition="iid", out="c")
    for row in result.rows:
        assert accuracy(row.runs[0].model(), blobs.x_test, blobs.y_test) == pytest.approx(
            row.runs[0].summary["global_acc"], abs=1e-6
        )


def test_all_recipes_of_a_comparison_see_the_same_partition_and_first_weights():
    result = fl.compare(["fedavg", "scaffold"], **SMALL_TASK | {"rounds": 1}, out="c")
    one, two = (row.runs[0] for row in result.rows)
    assert one.config["identity"]["partition_hash"] == two.config["identity"]["partition_hash"]
    first = [run.task.first_params(fl.recipe("fedavg")) for run in (one, two)]
    assert all(torch.equal(first[0][k], first[1][k]) for k in first[0])


def test_options_watch_a_run():
    seen = []

    class Watch(Progress):
        def begin(self, label, done, total):
            seen.append(("begin", label, done, total))

        def round(self, row):
            seen.append(("round", row["round"], row["clients"]))

        def end(self):
            seen.append(("end",))

    fl.run("fedavg", **SMALL_TASK, options=fl.Options(progress=Watch()))
    assert seen == [("begin", "fedavg", 0, 2), ("round", 1, 3), ("round", 2, 3), ("end",)]


# ---- a folder that is no run
@pytest.mark.parametrize("name", ["missing/folder", "empty", "file"])
def test_a_run_that_is_not_there_is_refused_at_once(name):
    Path("empty").mkdir()
    Path("file").write_text("mine")
    with pytest.raises(HeadwayError, match=f"^{name} is not a run directory: it has no config.json; give the folder"):
        fl.Run(name)


def test_a_folder_of_several_runs_names_one_of_them():
    Path("both/fedavg/seed-0").mkdir(parents=True)
    Path("both/fedavg/seed-0/config.json").write_text("{}")
    with pytest.raises(HeadwayError, match="both is not one run: it holds several, such as both/fedavg/seed-0; name"):
        fl.Run("both")
