"""The file formats of the known data sets: bytes in, arrays out, every length checked."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from headway.base.errors import DataError
from headway.data.sources.archives import gunzip

Array = NDArray[Any]
READABLE = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
GREY, COLOUR = ("1", "L", "LA"), ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def idx(where: str, raw: bytes) -> Array:
    """MNIST's format: two zero bytes, type 8 (uint8), the number of axes, their lengths, the values."""
    raw = gunzip(where, raw)
    if len(raw) < 4 or raw[:3] != b"\0\0\x08" or not 1 <= raw[3] <= 4 or len(raw) < 4 + 4 * raw[3]:
        raise DataError(f"{where} does not start like an idx file of bytes: fetch it again")
    axes = raw[3]
    shape = [int(n) for n in np.frombuffer(raw, ">u4", axes, 4)]
    if len(raw) != 4 + 4 * axes + math.prod(shape):
        raise DataError(f"{where} should hold {shape} bytes but has {len(raw) - 4 - 4 * axes}: fetch it again")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


def idx_pair(images: tuple[str, bytes], labels: tuple[str, bytes]) -> tuple[Array, Array]:
    """Images [N, 1, H, W] and labels [N] from two idx files, each given with its name."""
    x, y = idx(*images), idx(*labels)
    if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
        raise DataError(f"{images[0]} has {list(x.shape)} and {labels[0]} {list(y.shape)}: fetch both again")
    return x[:, None], y.astype(np.int64)


def cifar_records(where: str, raw: bytes, label_bytes: int) -> tuple[Array, Array]:
    """CIFAR's binary version: label bytes (the last one counts), then 3 x 32 x 32 pixels."""
    length = label_bytes + 3072
    if not raw or len(raw) % length:
        raise DataError(f"{where} has {len(raw)} bytes, no multiple of a {length}-byte record: fetch it again")
    records = np.frombuffer(raw, np.uint8).reshape(-1, length)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1].astype(np.int64)


def sheet(where: str, raw: bytes) -> Array:
    """CIFAR images as rows of one large picture: [N, 3, 32, 32]."""
    rows = pixels(where, raw, "RGB")
    if rows.shape[1] != 1024:
        raise DataError(f"{where} is {rows.shape[1]} pixels wide: a sheet of 32 x 32 images is 1024 wide")
    return rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)


def json_labels(where: str, raw: bytes) -> Array:
    values = parse_json(where, raw)
    if not isinstance(values, list) or not all(type(v) is int for v in values):
        raise DataError(f"{where} is no list of whole numbers: fetch it again")
    return np.asarray(values, dtype=np.int64)


def parse_json(where: str, raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not readable JSON ({type(error).__name__}): fetch it again") from error


def leaf(files: Iterable[tuple[str, bytes]], side: int = 28) -> tuple[Array, Array, list[str]]:
    """LEAF's json: images [N, 1, 28, 28] uint8, labels [N], and the writer of each sample."""
    xs: list[Array] = []
    ys: list[Array] = []
    writers: list[str] = []
    for where, raw in files:
        content = parse_json(where, raw)
        try:
            users = [(user, content["user_data"][user]) for user in content["users"]]
            sizes = [int(n) for n in content.get("num_samples", [])]
            for k, (user, data) in enumerate(users):
                x = np.asarray(data["x"], dtype=np.float64).reshape(-1, 1, side, side)
                y = np.asarray(data["y"], dtype=np.int64)
                if len(x) != len(y) or (sizes and sizes[k] != len(y)):
                    raise DataError(f"{where}: writer {user} has {len(x)} images and {len(y)} labels: fetch it again")
                xs.append(unit_to_bytes(f"{where}: writer {user}", x))
                ys.append(y)
                writers += [str(user)] * len(y)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise DataError(
                f"{where} lacks LEAF's fields users, num_samples, user_data with x of {side * side} numbers "
                "and y: write it with LEAF's preprocess.sh"
            ) from error
    if not writers:
        raise DataError("LEAF's json files hold no samples: write them with LEAF's preprocess.sh")
    return np.concatenate(xs), np.concatenate(ys), writers


def unit_to_bytes(where: str, x: Array) -> Array:
    """LEAF stores k/255 as a decimal number: give back k."""
    scaled = x * 255
    whole = np.rint(scaled)
    with np.errstate(invalid="ignore"):
        good = (np.abs(scaled - whole) < 0.01) & (whole >= 0) & (whole <= 255)
    if not good.all():
        bad = int(np.argmin(good))
        raise DataError(f"{where} has pixel {x.flat[bad]} at {bad}, which is not k/255: write it with LEAF")
    return np.asarray(whole, dtype=np.uint8)


def decode(named: Sequence[tuple[str, Path | bytes]], colour: bool = False) -> tuple[Array, list[str]]:
    """Image files as uint8 [N, C, H, W], one channel when all are grey and colour is not asked for; what to note."""
    parts = [range(i, min(i + 256, len(named))) for i in range(0, len(named), 256)]
    with ThreadPoolExecutor() as pool:
        heads = [head for part in pool.map(lambda part: [look(*named[i]) for i in part], parts) for head in part]
        usual = Counter(size for size, _ in heads).most_common(1)[0][0]
        for (where, _), (size, _) in zip(named, heads, strict=True):
            if size != usual:
                raise DataError(
                    f"{where} is {size[0]} x {size[1]} pixels but most images are {usual[0]} x {usual[1]}: "
                    "bring all images to one size"
                )
        grey = sum(mode in GREY for _, mode in heads)
        rgb = colour or grey < len(named)
        out = np.empty((len(named), 3 if rgb else 1, usual[1], usual[0]), dtype=np.uint8)

        def fill(part: range) -> None:
            for i in part:
                values = pixels(*named[i], mode="RGB" if rgb else "L")
                out[i] = values.transpose(2, 0, 1) if rgb else values

        list(pool.map(fill, parts))
    if not 0 < grey < len(named):
        return out, []
    are, were = ("is", "was") if grey == 1 else ("are", "were")
    return out, [f"{grey} of {len(named)} images {are} grey and {were} made RGB, as the others are"]


def look(where: str, source: Path | bytes) -> tuple[tuple[int, int], str]:
    """Size and kind of an image, read from its first bytes."""
    with reading(where), opened(source) as image:
        size, mode = image.size, image.mode
    if mode not in GREY + COLOUR:
        raise DataError(f"{where} has pixels of kind {mode}: save it with 8 bits a channel")
    return size, mode


def pixels(where: str, source: Path | bytes, mode: str) -> Array:
    with reading(where), opened(source) as image:
        return np.asarray(image.convert(mode))


def opened(source: Path | bytes) -> Image.Image:
    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=READABLE)


@contextmanager
def reading(where: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"{where} is no readable image ({type(error).__name__}): replace or remove it") from error
