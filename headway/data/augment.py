"""Augmentation of a whole batch at once, with random numbers from one explicit generator."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headway.base.errors import ConfigError, nearest
from headway.base.lazy import F, Tensor, torch

TAKES = {"none": None, "flip": None, "crop": "pixels", "cutout": "pixels", "rotate": "degrees"}
EXAMPLE = {"crop": "crop(4)", "cutout": "cutout(16)", "rotate": "rotate(15)"}


@dataclass(frozen=True)
class Augment:
    """Steps applied in order to images [B, C, H, W]; shape, type and device stay."""

    steps: tuple[tuple[str, float], ...] = ()
    fill: tuple[float, ...] | None = None  # what cutout writes, for each channel, in stored units; default 0

    def __bool__(self) -> bool:
        return bool(self.steps)

    def __str__(self) -> str:
        return "+".join(f"{name}({size:g})" if TAKES[name] else name for name, size in self.steps) or "none"

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        if not self.steps:
            return x
        if x.ndim != 4:
            raise ConfigError(f"augment is '{self}', but the data has shape {list(x.shape[1:])}: images only, use none")
        for name, size in self.steps:
            if name == "flip":
                x = flip(x, torch.rand(len(x), generator=rng) < 0.5)
            elif name == "crop":
                x = crop(x, int(size), torch.randint(0, 2 * int(size) + 1, (2, len(x)), generator=rng))
            elif name == "cutout":
                centre = torch.rand(2, len(x), generator=rng) * torch.tensor([[x.shape[2]], [x.shape[3]]])
                x = cutout(x, int(size), centre.long(), self.fill)
            else:
                x = rotate(x, (torch.rand(len(x), generator=rng) * 2 - 1) * size)
        return x

    def check_fits(self, height: int, width: int) -> None:
        """Refuse what could leave nothing of an image."""
        side = min(height, width)
        most = {"crop": side - 1, "cutout": side}
        for name, size in self.steps:
            if size > most.get(name, size):
                way = f"use at most {name}({most[name]})" if most[name] else f"leave {name} out"
                raise ConfigError(
                    f"augment={self}: {name}({size:g}) is too much for images of {height} x {width}; {way}"
                )


def parse(spec: str) -> Augment:
    """`none`, or steps joined with +: `crop(4)+flip`."""
    steps: list[tuple[str, float]] = []
    parts = [part.strip().lower() for part in str(spec).split("+")]
    for part in parts:
        name, size = parse_step(spec, part)
        if name == "none" and len(parts) > 1:
            raise ConfigError(f"augment '{spec}' joins none with other steps: write none alone, or leave it out")
        if name in (known for known, _ in steps):
            raise ConfigError(f"augment '{spec}' has the step {name} twice: keep one of the two")
        if name != "none":
            steps.append((name, size))
    return Augment(tuple(steps))


def parse_step(spec: str, part: str) -> tuple[str, float]:
    match = re.fullmatch(r"([a-z]*)\s*(?:\(\s*([0-9.]*)\s*\))?", part)
    name = match[1] if match else re.split(r"[^a-z]", part)[0]
    if name not in TAKES:
        raise ConfigError(f"augment '{spec}' has an unknown step '{part}': {nearest(name, TAKES)}")
    takes = TAKES[name]
    text = match[2] if match else None
    if takes is None:
        if part != name:
            raise ConfigError(f"augment '{spec}': {name} takes no number, write {name}")
        return name, 0.0
    if not text or not re.fullmatch(r"\d+" if takes == "pixels" else r"\d+(\.\d+)?", text) or float(text) <= 0:
        raise ConfigError(f"augment '{spec}': {name} takes {takes} above 0, as in {EXAMPLE[name]}")
    if (takes == "degrees" and float(text) > 180) or float(text) > 10_000:
        raise ConfigError(f"augment '{spec}': {text} {takes} is too much, as in {EXAMPLE[name]}")
    return name, float(text)


def flip(x: Tensor, chosen: Tensor) -> Tensor:
    """Mirror the chosen images left to right."""
    return torch.where(chosen.to(x.device)[:, None, None, None], x.flip(3), x)


def crop(x: Tensor, pad: int, offset: Tensor) -> Tensor:
    """Pad with zeros, then cut the old size out at (row, column) offsets [2, B] from 0 to 2 pad."""
    rows, columns = offset.to(x.device)
    windows = F.pad(x, (pad,) * 4).unfold(2, x.shape[2], 1).unfold(3, x.shape[3], 1)  # a view: [B, C, 2p+1, 2p+1, H, W]
    return windows[torch.arange(len(x), device=x.device), :, rows, columns]


def cutout(x: Tensor, side: int, centre: Tensor, fill: tuple[float, ...] | None = None) -> Tensor:
    """Fill a square around (row, column) centres [2, B]; what lies outside the image is cut off."""
    top, left = (centre - side // 2).to(x.device)
    rows = torch.arange(x.shape[2], device=x.device) - top[:, None]
    columns = torch.arange(x.shape[3], device=x.device) - left[:, None]
    inside = ((rows >= 0) & (rows < side))[:, None, :, None] & ((columns >= 0) & (columns < side))[:, None, None, :]
    values = torch.tensor(fill or (0.0,), dtype=torch.float64)
    values = (values if x.is_floating_point() else values.round()).to(x.device, x.dtype)
    return torch.where(inside, values[None, :, None, None], x)


def rotate(x: Tensor, degrees: Tensor) -> Tensor:
    """Turn each image counter-clockwise about its centre: nearest pixel, zeros from outside."""
    kind = x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32  # exact for every uint8
    angle = torch.deg2rad(degrees.double())
    cos, sin, none = angle.cos(), angle.sin(), torch.zeros_like(angle)
    tall = x.shape[2] / x.shape[3]  # the grid runs from -1 to 1 on both axes, whatever their lengths
    theta = torch.stack([torch.stack([cos, -sin * tall, none], 1), torch.stack([sin / tall, cos, none], 1)], 1)
    grid = F.affine_grid(theta.to(x.device, kind), list(x.shape), align_corners=False)
    turned = F.grid_sample(x.to(kind), grid, mode="nearest", padding_mode="zeros", align_corners=False)
    return turned.to(x.dtype)
