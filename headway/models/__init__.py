"""The models of the papers by name: bodies that turn inputs into features. Heads are added elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from headway.errors import ModelError, nearest
from headway.models import cnn, densenet, efficientnet, mlp, mobilenet, resnet
from headway.models.norm import POLICIES


@dataclass(frozen=True)
class Model:
    """One architecture.

    build      build(shape, bn) -> body: normalised floats [B, *shape] to features [B, body.dim]
    bias       whether the paper's linear classifier has a bias
    min_size   smallest image side it accepts (batches of two or more); 1 for any
    init_head  fills the classifier's weight [C, d] where that is not torch's default for linear layers
    bn         what the paper used, for the record: a body is built with what the caller asks for
    images     whether the input must be an image [channels, height, width]
    """

    name: str
    build: Callable[..., nn.Module]
    bias: bool
    about: str
    min_size: int
    init_head: Callable[[Tensor, torch.Generator], Tensor] | None = None
    bn: str = "running"
    images: bool = True


_RESNET = (16, 32, 64)
_WIDE = (64, 128, 256, 512)

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model(
            "mcmahan_cnn",
            partial(cnn.mcmahan, padding=0),
            True,
            "2 conv 5x5 without padding + fc 512 (FedTC, PFLlib)",
            16,
        ),
        Model(
            "mcmahan_cnn_padded",
            partial(cnn.mcmahan, padding=2),
            True,
            "2 conv 5x5 padded by 2 + fc 512 (FedNTD)",
            4,
        ),
        Model("moon_cnn", cnn.moon, True, "LeNet + projection to 256 (CCVR on CIFAR-10, MOON)", 16),
        Model("vgg11", partial(cnn.vgg11, fc=True), True, "8 conv + 2 fc, no BN (FedFN, FedNTD)", 32),
        Model(
            "vgg11_nofc",
            partial(cnn.vgg11, fc=False),
            False,
            "8 conv, no fc, no BN, classifier without bias (FedAvg_ETF + GMV)",
            32,
            init_head=cnn.small_normal,
        ),
        Model(
            "resnet8",
            partial(resnet.cifar, depth=1, widths=_RESNET),
            True,
            "CIFAR ResNet, 3 stages of 1 block, 16-64 channels (for CPUs; in no paper)",
            1,
        ),
        Model(
            "resnet20",
            partial(resnet.cifar, depth=3, widths=_RESNET),
            True,
            "CIFAR ResNet, 3 stages of 3 blocks, 16-64 channels (FedETF)",
            1,
        ),
        Model(
            "resnet32",
            partial(resnet.cifar, depth=5, widths=_RESNET),
            True,
            "CIFAR ResNet, 3 stages of 5 blocks, 16-64 channels (FedETF)",
            1,
        ),
        Model(
            "resnet56",
            partial(resnet.cifar, depth=9, widths=_RESNET),
            True,
            "CIFAR ResNet, 3 stages of 9 blocks, 16-64 channels (FedETF)",
            1,
        ),
        Model(
            "wrn56_4",
            partial(resnet.cifar, depth=9, widths=_WIDE[:3]),
            True,
            "resnet56 four times as wide, 64-256 channels (FedETF)",
            1,
        ),
        Model(
            "resnet18",
            partial(resnet.cifar, depth=2, widths=_WIDE),
            True,
            "CIFAR ResNet-18, 3x3 stem, no max pool (FedFN; FedETF on Tiny-ImageNet)",
            1,
        ),
        Model(
            "resnet18_tv",
            resnet.imagenet18,
            True,
            "torchvision's ResNet-18, 7x7 stem + max pool (FedTC on CIFAR-100; FedFN pretrained)",
            1,
        ),
        Model("densenet121", densenet.densenet121, True, "growth 32, blocks 6-12-24-16, 3x3 stem (FedETF)", 8),
        Model(
            "mobilenet",
            mobilenet.v1,
            True,
            "MobileNet v1, 13 depthwise-separable pairs (FedFN, FedBABU)",
            1,
            bn="batch",
        ),
        Model(
            "mobilenetv2",
            partial(mobilenet.v2, cifar=True),
            True,
            "CIFAR MobileNetV2 with 1x1-conv shortcuts (FedETF)",
            1,
        ),
        Model(
            "mobilenetv2_std",
            partial(mobilenet.v2, cifar=False),
            True,
            "MobileNetV2 with standard inverted residuals, CIFAR strides (CCVR, FedFN appendix)",
            1,
        ),
        Model(
            "efficientnet_b0",
            efficientnet.b0,
            True,
            "16 blocks with squeeze-excite, no last 1x1 conv (FedETF)",
            1,
        ),
        Model(
            "mlpnet",
            partial(mlp.mlp, widths=(1024, 1024, 128)),
            True,
            "3 fc 1024-1024-128 (FedAvg_ETF + GMV on FEMNIST)",
            1,
            images=False,
        ),
        Model(
            "mlpnet_nobias",
            partial(mlp.mlp, widths=(1024, 1024, 128)),
            False,
            "mlpnet with a classifier without bias (FedAvg_ETF + GMV)",
            1,
            images=False,
        ),
        Model("cnn4", cnn.cnn4, True, "4 conv 3x3 of 64 channels, each pooled (FedBABU)", 16, bn="batch"),
        Model(
            "mlp",
            partial(mlp.mlp, widths=(200, 200)),
            True,
            "2 fc of 200, for tables and small images (in no paper)",
            1,
            images=False,
        ),
        Model(
            "mlp_small",
            partial(mlp.mlp, widths=(64,)),
            True,
            "1 fc of 64, for tables and tests (in no paper)",
            1,
            images=False,
        ),
    )
}


def body(name: str, shape: tuple[int, ...], *, bn: str = "running", seed_stream: torch.Generator) -> nn.Module:
    """The body called `name` for inputs of `shape`, its weights drawn from the stream alone."""
    if name not in MODELS:
        raise ModelError(f"model '{name}' is unknown; {nearest(name, MODELS)}")
    if bn not in POLICIES:
        raise ModelError(f"bn '{bn}' is unknown; use one of {', '.join(POLICIES)}")
    model = MODELS[name]
    _check_shape(model, shape)
    with seeded(seed_stream):
        return model.build(tuple(shape), bn)


@contextmanager
def seeded(seed_stream: torch.Generator) -> Iterator[None]:
    """Inside, torch's random numbers start from the stream's seed; afterwards they go on where they were."""
    with torch.random.fork_rng(devices=[]):
        # the CPU's generator alone: torch.manual_seed would reset the GPUs' too, which the fork does not keep
        torch.default_generator.manual_seed(seed_stream.initial_seed())
        yield


def _check_shape(model: Model, shape: tuple[int, ...]) -> None:
    size = "x".join(map(str, shape)) or "scalar"
    if not shape or min(shape) < 1:
        raise ModelError(f"model '{model.name}' cannot take inputs of shape {size}: every size must be 1 or more")
    if not model.images:
        return
    if len(shape) != 3:
        raise ModelError(
            f"model '{model.name}' needs images (channels x height x width) but inputs have shape {size}; "
            "use 'mlp' for tabular data"
        )
    if min(shape[1:]) < model.min_size:
        raise ModelError(
            f"model '{model.name}' cannot take {size} images: its smallest side is {model.min_size}; "
            f"use a model for small images ('resnet8', 'mlp')"
        )
