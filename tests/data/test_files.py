from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import calling
import numpy as np
import pytest
import torch
from PIL import Image

from headway.base.errors import DataError
from headway.data import load

RNG = np.random.default_rng(1)


def picture(path: Path, value: int = 0, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0]) if mode in ("L", "I;16") else (size[1], size[0], 3)
    pixels = RNG.integers(0, 255, shape).astype(np.uint16 if mode == "I;16" else np.uint8)
    pixels[0, 0] = value
    Image.fromarray(pixels).save(path)


def refusal(path: Path | str) -> str:
    with pytest.raises(DataError) as caught:
        load(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_npz_with_unknown_or_missing_arrays_is_refused(tmp_path: Path):
    np.savez(tmp_path / "a.npz", x=np.eye(3), y=np.arange(3), xtest=np.eye(3))
    assert "array 'xtest': did you mean 'x_test'?" in refusal(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=np.eye(3))
    assert "no array 'y'" in refusal(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", z=np.eye(3), y=np.arange(3))
    assert refusal(tmp_path / "c.npz").endswith(
        "c.npz has no array 'x', only y and z: save it again with np.savez(path, x=..., y=...)"
    )
    np.savez(tmp_path / "d.npz")
    assert "no array 'x', it is empty: save" in refusal(tmp_path / "d.npz")


def test_a_single_array_under_the_name_of_several_is_refused_by_what_it_is(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.eye(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    assert refusal(tmp_path / "a.npz").endswith(
        "a.npz holds one .npy array under the name of an .npz: save x and y together with np.savez(path, x=..., y=...)"
    )


def test_a_truncated_or_foreign_npz_is_refused(tmp_path: Path):
    np.savez(tmp_path / "whole.npz", x=RNG.random((50, 4)), y=np.arange(50) % 2)
    raw = (tmp_path / "whole.npz").read_bytes()
    damaged = {"cut": raw[: len(raw) // 2], "empty": b"", "text": b"x,y\n1,2\n", "flip": bytearray(raw)}
    damaged["flip"][400] ^= 0xFF  # inside the first array: its CRC is wrong
    for name, content in damaged.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
        assert "is not a readable .npz (truncated?)" in refusal(tmp_path / f"{name}.npz")


def test_objects_and_pickles_are_never_unpickled(tmp_path: Path):
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "sprung",))  # type: ignore[return-value]

    np.savez(tmp_path / "objects.npz", x=np.array([Trap(), Trap()], dtype=object), y=np.arange(2))
    assert "Python objects" in refusal(tmp_path / "objects.npz")
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(Trap()))
    assert "not a readable .npz" in refusal(tmp_path / "pickle.npz")
    assert not (tmp_path / "sprung").exists()


def test_an_npz_that_claims_too_much_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headway.data.files.MAX_BYTES", 10_000)
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros((1000, 10)), y=np.arange(1000) % 2)
    assert "unpacks to" in refusal(tmp_path / "bomb.npz")


def test_an_npz_whose_header_lies_about_its_size_is_refused(tmp_path: Path):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": (10**9, 10**6)})
    with zipfile.ZipFile(tmp_path / "lie.npz", "w") as archive:
        archive.writestr("x.npy", buffer.getvalue())
        archive.writestr("y.npy", buffer.getvalue())
    assert "not a readable .npz" in refusal(tmp_path / "lie.npz")


def test_paths_that_are_missing_or_of_unknown_kind_are_refused(tmp_path: Path):
    assert "does not exist" in refusal(tmp_path / "nothing.npz")
    assert "does not exist" in refusal("nothing.csv")
    (tmp_path / "notes.txt").write_text("hello")
    assert "ends in '.txt'" in refusal(tmp_path / "notes.txt")


def test_an_existing_folder_is_a_path_but_a_known_name_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for i in range(4):
        picture(tmp_path / "digits" / "ab"[i % 2] / f"{i}.png")
        picture(tmp_path / "mine" / "ab"[i % 2] / f"{i}.png")
    assert load("digits").shape == (1, 8, 8)
    assert load("./digits").shape == load("mine").shape == (3, 4, 6)


def test_a_folder_of_class_folders_loads_sorted_with_its_names(tmp_path: Path):
    for c, name in enumerate(["cat", "ant", "bee"]):
        for i in range(5):
            picture(tmp_path / name / f"{i}.png", value=10 * c + i)
    (tmp_path / "ant" / "readme.txt").write_text("not an image")
    (tmp_path / ".hidden").mkdir()
    data = load(str(tmp_path))
    assert data.class_names == ("ant", "bee", "cat")
    assert data.shape == (3, 4, 6)
    assert data.x.dtype == torch.uint8
    assert data.y_test.bincount().tolist() == [1, 1, 1]
    corner = torch.cat([data.x, data.x_test])[:, 0, 0, 0]
    label = torch.cat([data.y, data.y_test])
    by_class = {c: sorted(corner[label == c].tolist()) for c in range(3)}
    assert by_class == {0: [10, 11, 12, 13, 14], 1: [20, 21, 22, 23, 24], 2: [0, 1, 2, 3, 4]}


@pytest.mark.parametrize("part", ["test", "val", "valid"])
def test_train_and_test_folders_are_taken_as_they_are(tmp_path: Path, part: str):
    for i in range(6):
        picture(tmp_path / "train" / "ab"[i % 2] / f"{i}.png", mode="L")
    picture(tmp_path / part / "b" / "0.png", mode="L")
    data = load(str(tmp_path))
    assert data.shape == (1, 4, 6)
    assert (data.y.tolist(), data.y_test.tolist()) == ([0, 0, 0, 1, 1, 1], [1])


def test_a_validation_folder_beside_a_test_folder_is_left_out_and_noted(tmp_path: Path):
    for part, count in (("train", 4), ("test", 2), ("val", 6)):
        for i in range(count):
            picture(tmp_path / part / "ab"[i % 2] / f"{i}.png")
    data = load(str(tmp_path))
    assert (len(data.y), len(data.y_test)) == (4, 2)
    assert data.note == "folder val left out"
    for i in range(2):
        picture(tmp_path / "train" / "ab"[i] / "grey.png", mode="L")
    assert (
        load(str(tmp_path)).note == "folder val left out; 2 of 8 images are grey and were made RGB, as the others are"
    )


def test_a_file_that_may_not_be_read_is_said_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("t.csv", "a.npz"):
        (tmp_path / name).write_text("a,label\n1,0\n")

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", forbidden)
    monkeypatch.setattr(zipfile, "ZipFile", forbidden)
    for name in ("t.csv", "a.npz"):
        assert "cannot be read (Permission denied)" in refusal(tmp_path / name)


def test_a_text_too_long_for_a_path_is_an_unknown_name():
    assert "neither a known data set" in refusal("x" * 5000)


def test_grey_and_colour_together_become_rgb(tmp_path: Path):
    for i in range(4):
        picture(tmp_path / "ab"[i % 2] / f"{i}.png", mode="L" if i == 3 else "RGB")
    data = load(str(tmp_path))
    assert data.shape == (3, 4, 6)
    assert "1 of 4 images is grey and was made RGB, as the others are" in data.note
    images = torch.cat([data.x, data.x_test])
    assert ((images[:, 0] == images[:, 1]).flatten(1).all(1)).sum() == 1


def test_pixels_are_exactly_those_of_the_file(tmp_path: Path):
    for i in range(4):
        picture(tmp_path / "train" / "ab"[i % 2] / f"{i}.png")
        picture(tmp_path / "test" / "ab"[i % 2] / f"{i}.png")
    data = load(str(tmp_path))
    direct = np.asarray(Image.open(tmp_path / "train" / "b" / "1.png")).transpose(2, 0, 1)
    assert np.array_equal(data.x[2].numpy(), direct)


def test_the_first_image_of_another_size_is_named(tmp_path: Path):
    for i in range(6):
        picture(tmp_path / "ab"[i % 2] / f"{i}.png", size=(7, 4) if i == 2 else (6, 4))
    text = refusal(tmp_path)
    assert text.startswith(str(tmp_path / "a" / "2.png"))
    assert "7 x 4 pixels but most images are 6 x 4" in text


def test_unreadable_images_and_folders_without_images_are_named(tmp_path: Path):
    for i in range(4):
        picture(tmp_path / "ab"[i % 2] / f"{i}.png")
    whole = (tmp_path / "a" / "0.png").read_bytes()
    (tmp_path / "a" / "0.png").write_bytes(whole[: len(whole) - 30])
    assert str(tmp_path / "a" / "0.png") in refusal(tmp_path)
    (tmp_path / "a" / "0.png").write_bytes(b"no image")
    assert "no readable image" in refusal(tmp_path)
    (tmp_path / "a" / "0.png").unlink()
    picture(tmp_path / "a" / "deep.png", mode="I;16")
    assert "8 bits a channel" in refusal(tmp_path)
    (tmp_path / "c").mkdir()
    assert "holds no images" in refusal(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "no class folders" in refusal(tmp_path / "empty")


def test_a_class_only_in_the_test_folder_is_named(tmp_path: Path):
    for i in range(4):
        picture(tmp_path / "train" / "ab"[i % 2] / f"{i}.png")
    picture(tmp_path / "test" / "c" / "0.png")
    assert "class without training images" in refusal(tmp_path)


def test_renaming_a_folder_changes_nothing(tmp_path: Path):
    for i in range(10):
        picture(tmp_path / "one" / "ab"[i % 2] / f"{i}.png")
    first = load(str(tmp_path / "one"))
    (tmp_path / "one").rename(tmp_path / "two")
    second = load(str(tmp_path / "two"))
    assert first.hash() == second.hash()
    assert first.subset(4, 2).hash() == second.subset(4, 2).hash()


def test_classes_that_no_training_sample_has_are_told(tmp_path):
    """Labels 0, 1, 2 and 9 make ten classes, of which a user may not know."""
    rng = np.random.default_rng(0)
    y = np.array([0, 1, 2, 9] * 30)
    np.savez(tmp_path / "gaps.npz", x=rng.normal(size=(120, 4)), y=y, x_test=rng.normal(size=(40, 4)), y_test=y[:40])
    end = calling.headway(
        "run", "fedavg", f"--data={tmp_path / 'gaps.npz'}", "--clients=2", "--rounds=1", f"--out={tmp_path / 'a'}"
    )
    assert end.code == 0, end.err
    assert "no training sample of class 3, 4, 5, 6, 7 and 1 more" in end.err
