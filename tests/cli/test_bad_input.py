"""Bad input: exit code 2, one sentence with the field, what was found and what to do, and a disk as it was."""

import numpy as np
import pytest
from calling import SMALL, headway

NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, classes, shape):
        super().__init__(nn.Flatten(), nn.Linear(shape[1] * shape[2], classes))

class Narrow(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 3))

class Softmax(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10), nn.Softmax(1))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with files that are wrong in one way each."""
    place = tmp_path_factory.mktemp("bad")
    rng = np.random.RandomState(0)
    x, y = rng.rand(60, 5), np.arange(60) % 3
    hole = x.copy()
    hole[3, 2] = np.nan
    np.savez(place / "table.npz", x=x, y=y)
    np.savez(place / "many.npz", x=rng.rand(400, 5), y=np.arange(400) % 100)  # 100 classes, as in CIFAR-100
    np.savez(place / "floats.npz", x=x, y=y + 0.5)
    np.savez(place / "negative.npz", x=x, y=y - 1)
    np.savez(place / "onehot.npz", x=x, y=np.eye(3)[y])
    np.savez(place / "nan.npz", x=hole, y=y)
    np.savez(place / "short.npz", x=x, y=y[:50])
    np.savez(place / "nolabels.npz", x=x)
    whole = (place / "table.npz").read_bytes()
    (place / "truncated.npz").write_bytes(whole[: len(whole) // 2])
    (place / "words.csv").write_text("a,b,label\n1,2,cat\n3,four,dog\n")
    np.savez(place / "alone.npz", x=x, y=y, group=np.arange(60))
    np.savez(place / "noinputs.npz", z=x, y=y)
    np.save(place / "single.npy", x)
    (place / "single.npy").rename(place / "single.npz")
    (place / "nolabel.csv").write_text("a,b,kind\n1,2,0\n3,4,1\n")
    (place / "twolabels.csv").write_text("a,class,y\n1,2,0\n3,4,1\n")
    (place / "twins.csv").write_text("a,a,label\n1,2,0\n3,4,1\n")
    (place / "hospitals.csv").write_text("a,site,label\n1,hosp0,0\n3,hosp1,1\n")
    (place / "sites.csv").write_text("a,group,label\n" + "".join(f"{i},h{i % 4},{i % 3}\n" for i in range(60)))
    (place / "folder").mkdir()
    (place / "file").write_text("a file, not a folder")
    (place / "net.py").write_text(NET)
    (place / "noclass.py").write_text("x = 1\n")
    (place / "broken.py").write_text("import nothing_of_that_name\n")
    return place


@pytest.fixture(autouse=True)
def _here(place, monkeypatch):
    monkeypatch.chdir(place)


def refused(place, words):
    """The one sentence of a refusal, after seeing that nothing else happened."""
    before = sorted(place.rglob("*"))
    end = headway(*words)
    assert end.code == 2
    assert end.out == ""
    assert end.err.startswith("headway: ")
    assert end.err.endswith("\n")
    assert end.err.count("\n") == 1
    assert "Traceback" not in end.err
    assert sorted(p for p in place.rglob("*") if "__pycache__" not in p.parts) == before
    return end.err


# what is given to `headway run`, and what the sentence must hold: field, value found, way out
OPTIONS = [
    # settings
    (["--lr=nan"], "lr", "nan", "above 0"),
    (["--lr=0"], "lr", "0", "above 0"),
    (["--lr=0,1"], "lr", "0,1", "must be a finite number"),
    (["--rounds=0"], "rounds", "0", "from 1"),
    (["--epochs=-1"], "epochs", "-1", "from 1"),
    (["--sampling=0"], "sampling", "0", "above 0 and at most 1"),
    (["--sampling=1.5"], "sampling", "1.5", "above 0 and at most 1"),
    (["--momentum=1"], "momentum", "1", "below 1"),
    (["--weight-decay=-0.1"], "weight_decay", "-0.1", "at least 0"),
    (["--clip-norm=0"], "clip_norm", "0", "above 0"),
    (["--lr-decay=2"], "lr_decay", "2", "such as 0.99"),
    (["--lr-decay=0.1@5,3"], "lr_decay", "0.1@5,3", "write 0.1@3,5"),
    (["--lr-decay=0.1@x"], "lr_decay", "0.1@x", "such as 0.1@160,240"),
    (["--batch-size=99999999999999999999"], "batch_size", "99999999999999999999", "to 1,000,000,000"),
    (["--clients=0"], "clients", "0", "from 1"),
    (["--clients=2.5"], "clients", "2.5", "whole number"),
    (["--seed=-1"], "seed", "-1", "at least 0"),
    (["--bn=none"], "bn", "none", "one of auto, running, batch, group"),
    (["--normalise=imagenet"], "normalise", "imagenet", "use dataset or half"),
    (["--aggregation=median"], "aggregation", "median", "one of weighted, uniform"),
    (["--set", "nosuch=1"], "nosuch", "1", "known: data"),
    (["--set", "learning-rate=1"], "learning_rate", "1", "known: data"),
    (["--set", "lr"], "set", "lr", "write key=value"),
    (["--set", "merge_test=maybe"], "merge_test", "maybe", "true or false"),
    (["--lr=0.1", "--set", "lr=0.2"], "lr", "0.1 and as 0.2", "give it once"),
    # how it is carried out
    (["--seeds=a"], "seeds", "a", "such as 0,1,2"),
    (["--seeds=0,0"], "seeds", "0,0", "each seed once"),
    (["--seeds=-1,2"], "seeds", "-1,2", "none below 0"),
    (["--seeds=0,1", "--seed=3"], "seed", "3", "use one of the two"),
    (["--device=xyz"], "device", "xyz", "use cpu"),
    (["--workers=0"], "workers", "0", "from 1 to"),
    (["--engine=rays"], "engine", "rays", "use local or ray"),
    (["--address=10.0.0.1:6379"], "address", "10.0.0.1:6379", "add --engine ray"),
    (["--threads=0"], "threads", "0", "from 1 to 1024"),
    (["--threads=9999999999999"], "threads", "9999999999999", "from 1 to 1024"),
    (["--checkpoint-seconds=nan"], "checkpoint_seconds", "nan", "at least 0"),
    # the command itself
    (["--lrr=0.1"], "option", "--lrr", "did you mean '--lr'?"),
    (["--lr"], "Option", "--lr", "headway run --help"),
    (["--json=1"], "Option", "--json", "headway run --help"),
    (["fedprox"], "argument", "fedprox", "write fedavg+fedprox to join pieces"),
    # model
    (["--model=nosuch"], "model", "nosuch", "known: "),
    (["--model=resnet2"], "model", "resnet2", "did you mean 'resnet"),
    (["--model=vgg11"], "model", "1x8x8", "use a model for small images"),
    (["--model=net.py:Nett"], "net.py", "Nett", "known: Net"),
    (["--model=nofile.py:Net"], "model file", "nofile.py", "paths start at"),
    (["--model=broken.py:Net"], "model file", "broken.py", "nothing_of_that_name"),
    (["--model=net.py:Softmax"], "model", "Softmax", "return the logits"),
    (["--model=resnet8", "--data=table.npz"], "model", "resnet8", "use 'mlp' for tabular data"),
    # augmentation
    (["--augment=flop"], "augment", "flop", "did you mean 'flip'?"),
    (["--augment=crop"], "augment", "crop", "as in crop(4)"),
    (["--augment=flip+flip"], "augment", "flip twice", "keep one"),
    (["--augment=crop(8)"], "augment", "crop(8)", "use at most crop(7)"),
    (["--augment=cutout(9)+flip"], "augment", "8 x 8", "use at most cutout(8)"),
    (["--augment=flip", "--data=table.npz"], "augment", "flip", "use none"),
    # partition and splits
    (["--partition=dirr(0.1)"], "partition", "dirr", "did you mean 'dir'?"),
    (["--partition=dir"], "partition", "dir", "for example dir(0.1)"),
    (["--partition=dir(0)"], "alpha", "0", "above 0"),
    (["--partition=dir(nan)"], "alpha", "nan", "above 0"),
    (["--partition=dir(0.1"], "partition", "dir(0.1", "write it like 'dir(0.1)'"),
    (["--partition=dir(0.1,alpah=2)"], "partition", "alpah", "did you mean 'alpha'?"),
    (["--partition=shard(2000)"], "shard", "40000 shards", "1438; use s and clients whose product is a multiple of 10"),
    (["--partition=shard(3)", "--clients=7"], "shard", "21", "use s = 10 or clients = 10"),
    (["--partition=classes(11)"], "classes", "11", "use n from 1 to 10"),
    (["--partition=natural"], "natural", "no groups", "use another partition"),
    (["--partition=none.json"], "partition file", "none.json", "check the path"),
    (["--clients=2000"], "clients", "2000", "use at most 719 clients"),
    (["--clients=2000", "--partition=iid"], "clients", "2000", "use at most 1438 clients"),
    (["--train-size=1"], "dir", "20 clients", "use 1 client and min_size=1"),
    (["--train-size=1", "--partition=iid"], "clients", "there are 1", "use 1 client"),
    (["--train-size=1", "--partition=shard(2)"], "shard", "no samples", "add some or use iid"),
    (["--partition=natural", "--data=sites.csv", "--clients=5"], "clients", "5", "use at most 4 clients, or leave"),
    (["--partition=./folder"], "partition file", "folder/partition.json", "check the path"),
    (["--train-size=99999"], "train_size", "99999", "give 1 to 1438"),
    (["--test-size=99999"], "test_size", "99999", "give 1 to 359"),
    (["--merge-test"], "merge_test", "local_test=shard", "use a share such as 0.25"),
    # data
    (["--data=digts"], "data", "digts", "did you mean 'digits'?"),
    (["--data=nofile.npz"], "data", "nofile.npz", "check the path"),
    (["--data=file"], "data", "file", "give .npz, .csv"),
    (["--data=cifar10", "--data-dir=nosuch"], "--data-dir", "nosuch", "name the folder"),
    (["--data=truncated.npz"], "truncated.npz", "not a readable .npz", "write it again"),
    (["--data=floats.npz"], "y", "label 0.5 at index 0", "whole numbers"),
    (["--data=negative.npz"], "y", "label -1 at index 0", "0..C-1"),
    (["--data=onehot.npz"], "y", "one-hot rows [60, 3]", "pass y.argmax(1)"),
    (["--data=nan.npz"], "x", "the first at [3, 2]", "fill or remove them"),
    (["--data=short.npz"], "y", "[50] but x has 60", "give one label for each"),
    (["--data=nolabels.npz"], "nolabels.npz", "no array 'y'", "np.savez"),
    (["--data=nolabel.csv"], "nolabel.csv", "no column 'label' among a, b, kind", "name it with nolabel.csv:COLUMN"),
    (["--data=twolabels.csv"], "columns", "class and y", "as in twolabels.csv:class"),
    (["--data=twins.csv"], "columns", "named 'a'", "give each its own name"),
    (["--data=hospitals.csv"], "column 'site'", "'hosp0'", "rename it to `group`"),
    (["--data=alone.npz"], "alone.npz", "none of its 60 groups", "give a test part"),
    (["--data=noinputs.npz"], "noinputs.npz", "no array 'x', only y and z", "np.savez"),
    (["--data=single.npz"], "single.npz", "one .npy array", "np.savez"),
    (["--data-dir=/nonexistent"], "--data-dir", "/nonexistent", "leave it out"),
    (["--data=table.npz", "--data-dir=/nonexistent"], "--data-dir", "/nonexistent", "leave it out"),
    (["--data=words.csv"], "column 'b'", "'four'", "encode or remove the column"),
    # where it goes
    (["--out=file"], "out", "file", "choose another --out"),
    (["--out=file/below"], "out", "file/below", "choose another --out"),
    (["--out=/proc/headway"], "out", "/proc/headway", "choose another --out"),
    (["--out="], "out", "empty", "give a folder"),
    # found elsewhere
    (["--device=meta"], "device", "meta", "use cpu"),
    (["--device=mps"], "device", "mps", "use cpu"),
    (["--model=noclass.py:Net"], "model", "Net", "class"),
    (["--model=net.py:Narrow"], "model", "3 logits", "make it"),
    (["--weights=none.safetensors"], "weights", "none.safetensors", "check the path"),
    (["--weights=file"], "weights", "file", "save_file"),
    (["--local-test=1.5"], "local_test", "1.5", "such as 0.3"),
    (["--local-test=half"], "local_test", "half", "such as 0.3"),
]


@pytest.mark.parametrize(("words", "field", "found", "fix"), OPTIONS, ids=[" ".join(case[0]) for case in OPTIONS])
def test_a_bad_option_is_refused(place, words, field, found, fix):
    words = words if any(w.startswith("--out") for w in words) else ["--out=o", *words]
    said = refused(place, ["run", "fedavg", *words])
    for part in (field, found, fix):
        assert part in said


RECIPES = [
    ("", "recipe", "''", "such as fedavg"),
    ("fedavg+", "fedavg+", "a piece is missing", "write name or name(key=value)"),
    ("moon(mu=1", "moon(mu=1", "do not match", "write name(key=value)"),
    ("scafold", "recipe", "scafold", "did you mean 'scaffold'?"),
    ("moon(mu)", "moon(mu)", "'mu'", "write key=value"),
    ("moon(mu=abc)", "mu", "abc", "must be a number"),
    ("moon(mu=-1)", "mu", "-1", ">= 0"),
    ("moon(mu=nan)", "mu", "nan", ">= 0"),
    ("prox(mux=1)", "prox", "mux", "did you mean 'mu'?"),
    ("scaffold(control=x)", "control", "x", "one of participation, none"),
    ("etf+babu", "head", "etf", "keep one of the two"),
    ("scaffold+fedavgm", "base", "scaffold", "keep one of the two"),
    ("fedper+fedrep", "share", "fedper", "keep one of the two"),
    ("etf+ccvr", "classifier", "etf freezes it", "write ccvr(replace_head=true)"),
    ("fedper+ccvr", "classifier", "fedper has none", "drop ccvr, or write ccvr(global_head=mean_of_personal)"),
    ("fedavg+fn+gmv", "gmv", "fn normalises them", "write gmv(space=raw)"),
    ("local+moon", "moon", "local", "drop moon or local"),
]


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize(("text", "field", "found", "fix"), RECIPES, ids=[case[0] or "empty" for case in RECIPES])
def test_a_bad_recipe_is_refused(place, command, text, field, found, fix):
    said = refused(place, [command, *(["fedavg"] if command == "compare" else []), text, "--out=o"])
    for part in (field, found, fix):
        assert part in said


@pytest.mark.parametrize("command", ["explain", "cite"])
@pytest.mark.parametrize("text", ["", "scafold", "etf+babu", "moon(mu=-1)"])
def test_explain_and_cite_refuse_what_run_refuses(place, command, text):
    assert refused(place, [command, text]) == refused(place, ["run", text, "--out=o"])


def test_a_frame_of_100_classes_does_not_fit_into_64_features(place):
    said = refused(place, ["run", "etf", "--data=many.npz", "--model=mlp_small", "--out=o"])
    assert "etf: 100 classes need at least 99 features and the body gives 64; use `etfproj`" in said


def test_a_projection_too_narrow_for_the_classes_is_refused(place):
    said = refused(place, ["run", "etfproj(d=5)", "--data=many.npz", "--model=mlp_small", "--out=o"])
    assert "100 classes need at least 99 features and there are 5; leave d out" in said


@pytest.mark.parametrize("command", [["run", "fedavg"], ["compare", "fedavg", "fedprox"]])
def test_the_engine_ray_without_ray_says_what_to_install(place, command, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert refused(place, [*command, "--engine=ray"]) == (
        "headway: engine=ray: Ray is not installed here; pip install 'headway[ray]'\n"
    )


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="this machine has CUDA")
def test_cuda_on_a_machine_without_it_is_refused(place):
    said = refused(place, ["run", "fedavg", "--device=cuda", "--out=o"])
    assert "device=cuda: this machine has no CUDA device that torch can use; use cpu" in said


COMMANDS = [
    (["trane", "fedavg"], "command", "trane", "headway --help"),
    (["ru", "fedavg"], "command", "'ru'", "did you mean 'run', 'runs'?"),
    (["run"], "argument", "RECIPE", "headway run --help"),
    (["compare", "--out=o"], "argument", "RECIPES", "headway compare --help"),
    (["resume"], "argument", "RUN", "headway resume --help"),
    (["explain"], "argument", "RECIPE", "headway explain --help"),
    (["-x"], "option", "-x", "headway --help"),
    (["list", "modls"], "list", "modls", "did you mean 'models'?"),
    (["list", "everything"], "list", "everything", "known: pieces, recipes"),
    (["resume", "nosuch"], "run directory", "nosuch", "give the folder of a run"),
    (["resume", "file"], "run directory", "file", "give the folder of a run"),
    (["resume", "."], "run directory", "config.json", "give the folder of a run"),
    (["partition", "fedavg"], "argument", "fedavg", "headway partition --help"),
    (["partition", "--partition=dir(0)", "--out=o"], "alpha", "0", "above 0"),
    (["partition", "--seeds=3,4", "--out=o"], "seeds", "3,4", "use --seed 3"),
    (["partition", "--out=file"], "out", "file", "choose another --out"),
    (["compare", "fedavg", "fedavg", "--out=o"], "recipes", "fedavg", "name each recipe once"),
    (["compare", "fedprox", "fedavg+prox", "--out=o"], "recipes", "fedavg+prox", "name each recipe once"),
    (["compare", "fedavg", "fedpr0x", "--out=o"], "recipe", "fedpr0x", "did you mean 'fedprox'?"),
    (["compare", "fedavg", "scaffold", "--seeds=1,1", "--out=o"], "seeds", "1,1", "each seed once"),
    (["compare", "fedavg", "scaffold", "--out=file"], "out", "file", "choose another --out"),
]


@pytest.mark.parametrize(("words", "field", "found", "fix"), COMMANDS, ids=[" ".join(case[0]) for case in COMMANDS])
def test_a_bad_command_is_refused(place, words, field, found, fix):
    said = refused(place, words)
    for part in (field, found, fix):
        assert part in said


def test_compare_finds_a_recipe_that_does_not_fit_the_task_before_the_first_run(place):
    said = refused(place, ["compare", "fedavg", "etf", "--data=many.npz", "--model=mlp_small", "--out=o"])
    assert "etf: 100 classes need at least 99 features" in said


def test_a_saved_partition_that_was_edited_is_refused(place, tmp_path):
    assert headway("partition", "--clients=3", "--train-size=200", f"--out={tmp_path}").code == 0
    saved = tmp_path / "partition.json"
    saved.write_text(saved.read_text().replace('"seed": 0', '"seed": 1'))
    said = refused(place, ["run", "fedavg", *SMALL, f"--partition={saved}", "--out=o"])
    assert str(saved) in said
    assert "its checksum differs" in said
    assert "draw it again" in said


def test_a_saved_partition_of_other_data_is_refused(place, tmp_path):
    assert headway("partition", "--clients=3", "--train-size=200", f"--out={tmp_path}").code == 0
    saved = tmp_path / "partition.json"
    said = refused(place, ["run", "fedavg", "--train-size=210", "--clients=3", f"--partition={saved}", "--out=o"])
    assert "was drawn on other labels than these 210" in said


def test_a_saved_partition_of_other_clients_says_how_many_it_has(place, tmp_path):
    assert headway("partition", "--clients=3", "--train-size=200", f"--out={tmp_path}").code == 0
    saved = tmp_path / "partition.json"
    said = refused(place, ["run", "fedavg", "--train-size=200", "--clients=4", f"--partition={saved}", "--out=o"])
    assert "clients is 4" in said
    assert "set clients=3" in said


def test_an_altered_file_of_a_known_data_set_is_refused(place, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    for part, kind in (
        ("train", "images-idx3"),
        ("train", "labels-idx1"),
        ("t10k", "images-idx3"),
        ("t10k", "labels-idx1"),
    ):
        (tmp_path / f"{part}-{kind}-ubyte").write_bytes(b"not what was published")
    said = refused(place, ["run", "fedavg", "--data=mnist", f"--data-dir={tmp_path}", "--out=o"])
    assert "train-images-idx3-ubyte is not the official file (its SHA-256 differs): fetch it again" in said
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_escape_codes_and_newlines_in_what_the_user_gave_do_not_reach_the_terminal(place):
    said = refused(place, ["run", "fedavg", "--data=\x1b[31mred\nline.npz", "--out=o"])
    assert "\x1b" not in said
    assert "red line.npz" in said


def test_several_mistakes_are_told_at_once(place):
    said = refused(place, ["run", "fedavg", "--lr=nan", "--rounds=0", "--out=o"])
    assert "lr=nan" in said
    assert "rounds=0" in said
