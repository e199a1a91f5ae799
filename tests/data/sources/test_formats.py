from __future__ import annotations

import gzip
import io
import json
import os
import stat
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headway.base.errors import DataError
from headway.data.sources import archives, formats

RNG = np.random.default_rng(2)


def idx_bytes(a: np.ndarray) -> bytes:
    return bytes([0, 0, 8, a.ndim]) + struct.pack(f">{a.ndim}I", *a.shape) + a.astype(np.uint8).tobytes()


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def make_tar(path: Path, files: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, raw in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return path


def any_name(_: str) -> bool:
    return True


# --- formats ---


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_files_give_back_their_arrays(pack):
    images, labels = RNG.integers(0, 255, (5, 4, 3)), np.array([3, 1, 4, 1, 5])
    x, y = formats.idx_pair(("i", pack(idx_bytes(images))), ("l", pack(idx_bytes(labels))))
    assert np.array_equal(x[:, 0], images)
    assert x.shape == (5, 1, 4, 3)
    assert y.tolist() == [3, 1, 4, 1, 5]
    assert y.dtype == np.int64


def test_damaged_idx_files_are_refused():
    raw = idx_bytes(RNG.integers(0, 255, (5, 4, 3)))
    for bad in (b"", raw[:3], raw[:10], b"\0\0\x0d" + raw[3:], b"\1" + raw[1:]):
        with pytest.raises(DataError, match="does not start like an idx file"):
            formats.idx("f", bad)
    for bad in (raw[:-1], raw + b"\0", raw[:4] + struct.pack(">I", 2**31) + raw[8:]):
        with pytest.raises(DataError, match="should hold"):
            formats.idx("f", bad)
    with pytest.raises(DataError, match="damaged"):
        formats.idx("f", gzip.compress(raw)[:-12])
    with pytest.raises(DataError, match="fetch both again"):
        formats.idx_pair(("i", raw), ("l", idx_bytes(np.arange(4))))


def test_cifar_records_give_the_last_label_byte_and_channels_first():
    pixels = RNG.integers(0, 255, (4, 3, 32, 32)).astype(np.uint8)
    raw = b"".join(bytes([9, i]) + pixels[i].tobytes() for i in range(4))
    x, y = formats.cifar_records("f", raw, label_bytes=2)
    assert np.array_equal(x, pixels)
    assert y.tolist() == [0, 1, 2, 3]
    for bad in (b"", raw[:-1], raw + b"\0"):
        with pytest.raises(DataError, match="3074-byte record"):
            formats.cifar_records("f", bad, label_bytes=2)


def test_a_sheet_holds_one_image_a_row():
    pixels = RNG.integers(0, 255, (3, 32, 32, 3)).astype(np.uint8)
    x = formats.sheet("f", png(pixels.reshape(3, 1024, 3)))
    assert np.array_equal(x, pixels.transpose(0, 3, 1, 2))
    with pytest.raises(DataError, match="1000 pixels wide"):
        formats.sheet("f", png(np.zeros((2, 1000, 3), np.uint8)))
    with pytest.raises(DataError, match="no readable image"):
        formats.sheet("f", png(pixels.reshape(3, 1024, 3))[:-100])


def test_json_labels_must_be_whole_numbers():
    assert formats.json_labels("f", b"[1, 2]").tolist() == [1, 2]
    for bad in (b"[1, 2.5]", b'{"a": 1}', b"[true]", b"[1,", b"\xff", b"[" * 100_000):
        with pytest.raises(DataError):
            formats.json_labels("f", bad)


def leaf_json(users: dict[str, list[int]], told: list[int] | None = None) -> bytes:
    data = {u: {"x": [[c / 255] * 784 for c in y], "y": y} for u, y in users.items()}
    sizes = [len(y) for y in users.values()] if told is None else told
    return json.dumps({"users": list(users), "num_samples": sizes, "user_data": data}).encode()


def test_leaf_json_gives_exact_bytes_and_writers():
    x, y, writers = formats.leaf([("a", leaf_json({"w1": [61, 2], "w2": [7]})), ("b", leaf_json({"w3": [0]}))])
    assert x.dtype == np.uint8
    assert x.shape == (4, 1, 28, 28)
    assert x[:, 0, 5, 5].tolist() == y.tolist() == [61, 2, 7, 0]
    assert writers == ["w1", "w1", "w2", "w3"]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"{}", "lacks LEAF's fields"),
        (b"[]", "lacks LEAF's fields"),
        (leaf_json({"w": [1]}).replace(b'"y"', b'"z"'), "lacks LEAF's fields"),
        (leaf_json({"w": [1, 2]}, told=[3]), "has 2 images and 2 labels"),
        (b'{"users": ["w"], "user_data": {"w": {"x": [[0.5, 0.5]], "y": [1]}}}', "lacks LEAF's fields"),
        (leaf_json({"w": [1]}).replace(b"0.00392156862745098,", b"0.0055,", 1), "not k/255"),
        (leaf_json({"w": [1]}).replace(b"0.00392156862745098,", b"NaN,", 1), "not k/255"),
        (leaf_json({}), "no samples"),
    ],
)
def test_bad_leaf_json_is_refused(raw: bytes, says: str):
    with pytest.raises(DataError, match=says):
        formats.leaf([("f", raw)])


# --- archives ---


def test_folder_zip_and_tar_give_the_same_files(tmp_path: Path):
    files = {"top/a.txt": b"1", "top/sub/b.txt": b"22", "top/skip.bin": b"333"}
    for name, raw in files.items():
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(raw)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in files.items():
            archive.writestr(name, raw)
    make_tar(tmp_path / "a.tar.gz", {f"./{name}": raw for name, raw in files.items()})
    wanted = {k: v for k, v in files.items() if k.endswith(".txt")}
    for source in ("folder", "a.zip", "a.tar.gz"):
        assert archives.members(tmp_path / source, lambda name: name.endswith(".txt")) == wanted


@pytest.mark.parametrize("name", ["../up.txt", "/root.txt", "a/../../b.txt"])
def test_members_that_point_outside_are_refused_when_wanted(tmp_path: Path, name: str):
    make_tar(tmp_path / "t.tar.gz", {name: b"x", "good": b"y"})
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr(name, b"x")
    for archive_name in ("t.tar.gz", "t.zip"):
        with pytest.raises(DataError, match="no plain file inside it"):
            archives.members(tmp_path / archive_name, any_name)
    assert archives.members(tmp_path / "t.tar.gz", lambda n: n == "good") == {"good": b"y"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.tar.gz", "t.zip"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes):
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = kind, "/etc/hostname"
        tar.addfile(info)
    with pytest.raises(DataError, match="link, which is no plain file"):
        archives.members(tmp_path / "t.tar", any_name)


def test_links_in_a_zip_are_refused(tmp_path: Path):
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr(info, "/etc/hostname")
    with pytest.raises(DataError, match="no plain file"):
        archives.members(tmp_path / "t.zip", any_name)


def test_archives_that_unpack_to_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_tar(tmp_path / "t.tar.gz", {"big": bytes(100_000), "small": b"1"})
    with zipfile.ZipFile(tmp_path / "t.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big", bytes(100_000))
    monkeypatch.setattr(archives, "MAX_BYTES", 50_000)
    for name in ("t.tar.gz", "t.zip"):
        with pytest.raises(DataError, match="unpacks to more than"):
            archives.members(tmp_path / name, lambda n: n == "small")
    with pytest.raises(DataError, match="unpacks to more than 1000 bytes"):
        archives.gunzip("f", gzip.compress(bytes(5000)), limit=1000)
    monkeypatch.setattr(archives, "MAX_BYTES", 1 << 30)
    monkeypatch.setattr(archives, "MAX_MEMBERS", 1)
    with pytest.raises(DataError, match="or 1 files"):
        archives.members(tmp_path / "t.tar.gz", lambda n: n == "small")


def test_truncated_and_foreign_archives_are_refused(tmp_path: Path):
    whole = make_tar(tmp_path / "t.tar.gz", {"a": RNG.bytes(50_000)}).read_bytes()
    for cut in (len(whole) // 2, 5, 0):
        (tmp_path / "cut.tar.gz").write_bytes(whole[:cut])
        with pytest.raises(DataError, match="damaged"):
            archives.members(tmp_path / "cut.tar.gz", any_name)
    (tmp_path / "cut.tar.gz").write_bytes(b"hello")
    with pytest.raises(DataError, match="damaged"):
        archives.members(tmp_path / "cut.tar.gz", any_name)


def test_the_same_member_twice_is_refused(tmp_path: Path):
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("a"), io.BytesIO())
    with pytest.raises(DataError, match="holds a twice"):
        archives.members(tmp_path / "t.tar", any_name)


def test_the_fingerprint_changes_with_the_wanted_files_only(tmp_path: Path):
    (tmp_path / "a.txt").write_text("1")
    (tmp_path / "b.txt").write_text("1")

    def key() -> str:
        return archives.fingerprint(tmp_path, lambda name: name == "a.txt")

    first = key()
    (tmp_path / "b.txt").write_text("22")
    assert key() == first
    (tmp_path / "a.txt").write_text("22")
    second = key()
    assert second != first
    os.utime(tmp_path / "a.txt", (1, 1))
    assert key() != second
