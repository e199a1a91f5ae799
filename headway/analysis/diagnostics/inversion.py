"""Feature inversion: an image that gives a known feature, or the mean of several (CCVR's Appendix C)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headway.analysis.diagnostics.finding import Finding, NotApplicable
from headway.analysis.diagnostics.subject import Subject
from headway.analysis.plotting.style import Floats, blank, label
from headway.base.tree import stream
from headway.metrics.geometry import class_sums, finite_or_none
from headway.models.net import Net, Normalise, normalises_by_batch
from headway.training import rounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (1, 3, 10)  # features that are averaged
CLASSES = 4  # reconstructed classes
PART = 1024  # training images that are in float64 at a time
ABOUT = (
    "Images sought by Adam ({steps} steps from noise, with penalties on total variation and size; at most {most}, and "
    "no more once no image has got better by 1 % over 100 of them) whose feature under the global model is that of one "
    "training image, or the mean of 3 or 10 of one client and class: what a client sends to CCVR. The closer the "
    "picture to a single original, the more the statistic reveals. Quality is measured by the feature "
    "loss ||f(x) - z||^2 / ||z||^2, by PSNR and SSIM{window}, and by whether {judge} names the class. As Appendix C of "
    "Luo et al. (2021), which inverts an ImageNet ResNet-50; here it is the run's own model, and a qualitative check: "
    "a stronger attack may show more."
)


@dataclass(frozen=True)
class Attack:
    """How hard the inversion tries; it gives up when `patience` steps have bettered no image by the share `least`."""

    steps: int = 1000  # at most
    lr: float = 0.1
    tv: float = 0.02  # lambda_tv, on normalised values
    l2: float = 1e-3  # lambda_2
    patience: int = 100
    least: float = 0.01


@dataclass(frozen=True)
class Target:
    """What is inverted: the mean feature of n images of one client and class."""

    client: int
    y: int
    images: Tensor  # [n, ...] as stored


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbours, down and across, of each image [B, C, H, W]; [B]."""
    down = (x[:, :, 1:] - x[:, :, :-1]).abs().flatten(1)
    across = (x[..., 1:] - x[..., :-1]).abs().flatten(1)
    return sum((d.mean(1) for d in (down, across) if d.shape[1]), torch.zeros(len(x), device=x.device))


def psnr(a: Tensor, b: Tensor, span: float) -> float:
    """10 log10(span^2 / mean (a - b)^2), in dB; infinite for equal images."""
    error = float((a.double() - b.double()).square().mean())
    return 10 * math.log10(span**2 / error) if error > 0 else math.inf


def window_of(side: int, most: int = 11, sigma: float = 1.5) -> Tensor:
    """SSIM's Gaussian window [w, w], 11 wide, or the widest odd one that a small image holds."""
    width = min(most, side if side % 2 else side - 1)
    line = torch.exp(-((torch.arange(width, dtype=torch.float64) - width // 2) ** 2) / (2 * sigma**2))
    window = line[:, None] * line
    return window / window.sum()


def ssim(a: Tensor, b: Tensor, span: float) -> float:
    """Structural similarity of two images [C, H, W] (Wang et al., 2004), mean over windows; `span`: of the values."""
    window = window_of(min(a.shape[1:]))[None, None]  # [1, 1, w, w]
    a, b = a.double()[:, None], b.double()[:, None]  # [C, 1, H, W]

    def local(x: Tensor) -> Tensor:
        return F.conv2d(x, window)

    mu_a, mu_b = local(a), local(b)
    var_a, var_b, cov = local(a * a) - mu_a**2, local(b * b) - mu_b**2, local(a * b) - mu_a * mu_b
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    alike = (2 * mu_a * mu_b + c1) * (2 * cov + c2) / ((mu_a**2 + mu_b**2 + c1) * (var_a + var_b + c2))
    return float(alike.mean())


def invert(
    net: Net, z: Tensor, low: Tensor, high: Tensor, rng: torch.Generator, how: Attack
) -> tuple[Tensor, Tensor, int]:
    """argmin_x ||f(x) - z||^2 / ||z||^2 + lambda_tv TV(x) + lambda_2 mean x^2 for every row of z, [B, C, H, W].

    x is in normalised values and kept where stored values can be; gives stored values, the feature losses [B]
    and the steps that were taken.
    """
    assert isinstance(net.inputs, Normalise)
    shift, factor = net.inputs.shift, net.inputs.factor
    floor, ceiling = (low - shift) * factor, (high - shift) * factor
    shape = (len(z), *low.shape)
    x = (torch.randn(shape, generator=rng) * 0.3).to(z.device).requires_grad_()
    adam = torch.optim.Adam([x], lr=how.lr)
    size = z.square().sum(1).clamp(min=1e-12)
    asked = {name: p.requires_grad for name, p in net.named_parameters()}
    net.eval().requires_grad_(False)

    def loss_of(x: Tensor) -> Tensor:
        return (net.features(x / factor + shift) - z).square().sum(1) / size  # [B]

    best = before = torch.full((len(z),), math.inf, device=z.device)
    steps = 0
    for steps in range(1, how.steps + 1):
        adam.zero_grad()
        penalty = how.tv * total_variation(x) + how.l2 * x.square().flatten(1).mean(1)
        loss = loss_of(x) + penalty  # [B]
        loss.sum().backward()
        adam.step()
        best = best.minimum(loss.detach())
        with torch.no_grad():
            x.copy_(x.maximum(floor).minimum(ceiling))
        if steps % how.patience == 0:
            if bool((best > (1 - how.least) * before).all()):
                break
            before = best
    for name, p in net.named_parameters():
        p.requires_grad_(asked[name])
    with torch.no_grad():
        return (x / factor + shift).detach(), loss_of(x), steps


def targets_of(subject: Subject, sizes: Sequence[int] = SIZES, classes: int = CLASSES) -> list[list[Target]]:
    """For each chosen class, from the client with most samples of it: its first 1, 3 and 10 of them."""
    counts = subject.counts
    most = counts.max(0).values  # [C]
    order = sorted(torch.nonzero(most >= min(max(sizes), int(most.max()))).flatten().tolist())
    chosen = [order[i] for i in np.unique(np.linspace(0, len(order) - 1, min(len(order), classes)).astype(int))]
    found = []
    for c in chosen:
        k = int(counts[:, c].argmax())
        x, y = subject.task.data[k]
        images = x[y == c]
        found.append([Target(k, c, images[:n]) for n in sizes if n <= len(images)])
    return found


def nearest_mean(subject: Subject, without: Sequence[Target]) -> Tensor:
    """Mean stored image of every class of the training data but for the images looked for, [C, ...]; NaN without any.

    A judge that has seen the originals would find them in the reconstructions.
    """
    d, classes = subject.task.dataset, subject.classes
    sums, n = torch.zeros(()), torch.bincount(d.y, minlength=classes)  # [C, pixels], [C]
    for x, y in zip(d.x.split(PART), d.y.split(PART), strict=True):
        sums = sums + class_sums(x.flatten(1), y, classes)
    for c in {t.y for t in without}:
        images = max((t.images.flatten(1).cpu() for t in without if t.y == c), key=len)  # the first 10 hold the first 3
        sums[c] -= images.double().sum(0)
        n[c] -= len(images)
    return (sums / n[:, None]).float().view(-1, *d.shape)


def nearest(means: Tensor, x: Tensor) -> Tensor:
    """The class whose mean image is nearest, [B]."""
    gap = torch.cdist(x.flatten(1).float().cpu(), means.flatten(1))
    return gap.nan_to_num(nan=math.inf).argmin(1)


def inversion(subject: Subject, how: Attack | None = None) -> Finding:
    """Images reconstructed from a raw feature and from the mean of several."""
    how = how or Attack()
    task = subject.task
    if len(task.dataset.shape) != 3:
        raise NotApplicable("inversion draws images, and the samples of this data set are rows of a table")
    if not rounds.has_global_model(subject.saved.recipe, task):
        raise NotApplicable(
            "inversion starts from the global model's features, and under this recipe bodies are personal"
        )
    net = subject.net
    if normalises_by_batch(net):
        raise NotApplicable(
            "inversion needs a feature that belongs to one image, and this model normalises by the batch"
        )
    groups = targets_of(subject)
    targets = [target for group in groups for target in group]
    z = torch.stack([net.features_of(t.images).mean(0) for t in targets])  # [B, d]
    if not torch.isfinite(z).all():
        raise NotApplicable("inversion needs finite features, and this model's are not")
    x = task.dataset.x
    low, high = (x.amin((0, 2, 3)), x.amax((0, 2, 3)))  # [C]
    low, high = (v.float().view(-1, 1, 1).expand(task.dataset.shape).to(z.device) for v in (low, high))
    subject.say(f"inverting {len(targets)} features")
    made, losses, steps = invert(net, z, low, high, stream(task.seed, "inversion"), how)
    return finding(subject, targets, made.cpu(), losses.cpu(), float((high - low).max()), steps, how.steps)


def finding(
    subject: Subject, targets: Sequence[Target], made: Tensor, losses: Tensor, span: float, steps: int, most: int
) -> Finding:
    means = nearest_mean(subject, targets)
    with torch.no_grad():
        judged, own = nearest(means, made), subject.net(made.to(subject.task.device)).argmax(1).cpu()
    table: list[dict[str, Any]] = []
    for i, t in enumerate(targets):
        originals = t.images.float().cpu()
        each = [(psnr(made[i], o, span), ssim(made[i], o, span)) for o in originals]
        whole = originals.mean(0)
        table.append(
            {
                "class": subject.names[t.y],
                "client": t.client,
                "features": len(originals),
                "feature_loss": float(losses[i]),
                "psnr": finite_or_none(sum(p for p, _ in each) / len(each)),
                "ssim": sum(s for _, s in each) / len(each),
                "best_psnr": finite_or_none(max(p for p, _ in each)),
                "best_ssim": max(s for _, s in each),
                "psnr_of_mean_image": finite_or_none(psnr(made[i], whole, span)),
                "ssim_of_mean_image": ssim(made[i], whole, span),
                "class_recovered": bool(judged[i] == t.y),
                "class_by_the_model": bool(own[i] == t.y),
            }
        )
    singles = torch.cat([t.images[:1].float().cpu() for t in targets if len(t.images) == 1])
    truth = torch.tensor([t.y for t in targets if len(t.images) == 1])
    summary: dict[str, Any] = {}
    for n in sorted({r["features"] for r in table}):
        mine = [r for r in table if r["features"] == n]
        what = "one feature" if n == 1 else f"mean of {n}"
        known = [r["psnr"] for r in mine if r["psnr"] is not None]
        summary |= {
            f"PSNR ({what})": sum(known) / len(known) if known else None,
            f"SSIM ({what})": sum(r["ssim"] for r in mine) / len(mine),
            f"classes recovered ({what})": f"{sum(r['class_recovered'] for r in mine)} of {len(mine)}",
        }
    summary["steps"] = steps
    able = int((nearest(means, singles) == truth).sum())
    judge = (
        f"the nearest mean image of the training classes, taken without these images (it names {able} of {len(truth)} "
        f"originals right)"
    )
    side = min(subject.task.dataset.shape[1:])
    small = f" (window {len(window_of(side))}, for the images are small)" if side < 11 else ""
    figures = "; ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in summary.items())
    return Finding(
        "inversion",
        "Images reconstructed from features",
        ABOUT.format(steps=steps, most=most, judge=judge, window=small),
        summary,
        {"images": table},
        f"Original images beside those reconstructed from one feature and from means of several: {figures}.",
        lambda: draw(targets, made, table, subject.names),
    )


def draw(targets: Sequence[Target], made: Tensor, table: Sequence[dict[str, Any]], names: Sequence[str]) -> Figure:
    """A row a class: an original and what its feature gives; then mean images and what the mean features give."""
    rows = list(dict.fromkeys(t.y for t in targets))
    sizes = sorted({len(t.images) for t in targets})
    columns: list[tuple[str, int]] = []
    for n in sizes:
        columns += [("original" if n == 1 else f"mean image of {n}", n), (column_title(n), n)]
    low = min(float(t.images.min()) for t in targets)
    high = max(float(t.images.max()) for t in targets)
    figure = blank(1.75 * len(columns), 1.95 * len(rows) + 0.4)
    cells = figure.subplots(len(rows), len(columns), squeeze=False)
    for axes in cells.flat:
        axes.set_axis_off()
    for i, t in enumerate(targets):
        row, n = rows.index(t.y), len(t.images)
        at = columns.index((column_title(n), n))
        left, right = cells[row, at - 1], cells[row, at]
        show(left, t.images.float().mean(0), low, high)
        show(right, made[i], low, high)
        said = f"SSIM {table[i]['ssim']:.2f}"
        left.set_title(f"{columns[at - 1][0]}\n{label(names[t.y], 14)}", fontsize=9)
        right.set_title(f"{columns[at][0]}\n{said}", fontsize=9)
    return figure


def column_title(n: int) -> str:
    return "from its feature" if n == 1 else f"from {n} features' mean"


def show(axes: Any, image: Tensor, low: float, high: float) -> None:
    """An image [C, H, W] of stored values: in colour where it has three channels, else its first in grey."""
    pixels: Floats = ((image.cpu().float() - low) / max(high - low, 1e-12)).clamp(0, 1).numpy()
    if len(pixels) == 3:
        axes.imshow(pixels.transpose(1, 2, 0), interpolation="nearest")
    else:
        axes.imshow(pixels[0], cmap="gray", vmin=0, vmax=1, interpolation="nearest")
