"""The built-in models by name, and those a user registers. A body's module is imported when it is first built."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.base.errors import ModelError
from headway.base.lazy import Tensor, torch
from headway.base.registered import about_of, check_new_name, claim, release

if TYPE_CHECKING:
    from torch import nn

POLICIES = ("running", "batch", "group")  # of normalisation, see norm.py


def made_by(place: str, **fixed: Any) -> Callable[..., Any]:
    """The function `module.name` of this folder with some arguments fixed; imported when it is called."""
    module, name = place.split(".")

    def call(*given: Any, **more: Any) -> Any:
        return getattr(importlib.import_module(f"headway.models.{module}"), name)(*given, **fixed, **more)

    return call


@dataclass(frozen=True)
class Model:
    """One architecture.

    build      build(shape, bn) -> body: normalised floats [B, *shape] to features [B, body.dim]
    bias       whether the paper's linear classifier has a bias
    min_size   smallest image side it accepts (batches of two or more); 1 for any
    init_head  initialises the classifier's weight [C, d], if not by torch's default for linear layers
    bn         the normalisation that the paper used, which `bn=auto` selects
    images     whether the input must be an image [channels, height, width]
    make       of a registered model: the user's class or function, which returns the whole network
    """

    name: str
    build: Callable[..., nn.Module]
    bias: bool
    about: str
    min_size: int
    init_head: Callable[[Tensor, torch.Generator], Tensor] | None = None
    bn: str = "running"
    images: bool = True
    make: Callable[..., nn.Module] | None = None


_RESNET = (16, 32, 64)
_WIDE = (64, 128, 256, 512)

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model(
            "mcmahan_cnn",
            made_by("cnn.mcmahan", padding=0),
            True,
            "2 conv 5x5 without padding + fc 512 (FedTC, PFLlib)",
            16,
        ),
        Model(
            "mcmahan_cnn_padded",
            made_by("cnn.mcmahan", padding=2),
            True,
            "2 conv 5x5 padded by 2 + fc 512 (FedNTD)",
            4,
        ),
        Model("moon_cnn", made_by("cnn.moon"), True, "LeNet + projection to 256 (CCVR on CIFAR-10, MOON)", 16),
        Model("vgg11", made_by("cnn.vgg11", fc=True), True, "8 conv + 2 fc, no BN (FedFN, FedNTD)", 32),
        Model(
            "vgg11_nofc",
            made_by("cnn.vgg11", fc=False),
            False,
            "8 conv, no fc, no BN, classifier without bias (FedAvg_ETF + GMV)",
            32,
            init_head=made_by("cnn.small_normal"),
        ),
        Model(
            "resnet8",
            made_by("resnet.cifar", depth=1, widths=_RESNET),
            True,
            "CIFAR ResNet, 3 stages of 1 block, 16-64 channels (for CPUs; in no paper)",
            1,
        ),
        Model(
            "resnet20",
            made_by("resnet.cifar", depth=3, widths=_RESNET),
            True,
            "CIFAR ResNet, 3 stages of 3 blocks, 16-64 channels (FedETF)",
            1,
        ),
        Model(
            "resnet32",
            made_by("resnet.cifar", depth=5, widths=_RESNET),
            True,
            "CIFAR ResNet, 3 stages of 5 blocks, 16-64 channels (FedETF)",
            1,
        ),
        Model(
            "resnet56",
            made_by("resnet.cifar", depth=9, widths=_RESNET),
            True,
            "CIFAR ResNet, 3 stages of 9 blocks, 16-64 channels (FedETF)",
            1,
        ),
        Model(
            "wrn56_4",
            made_by("resnet.cifar", depth=9, widths=_WIDE[:3]),
            True,
            "resnet56 four times as wide, 64-256 channels (FedETF)",
            1,
        ),
        Model(
            "resnet18",
            made_by("resnet.cifar", depth=2, widths=_WIDE),
            True,
            "CIFAR ResNet-18, 3x3 stem, no max pool (FedFN; FedETF on Tiny-ImageNet)",
            1,
        ),
        Model(
            "resnet18_tv",
            made_by("resnet.imagenet18"),
            True,
            "torchvision's ResNet-18, 7x7 stem + max pool (FedTC on CIFAR-100; FedFN pretrained)",
            1,
        ),
        Model(
            "densenet121", made_by("densenet.densenet121"), True, "growth 32, blocks 6-12-24-16, 3x3 stem (FedETF)", 8
        ),
        Model(
            "mobilenet",
            made_by("mobilenet.v1"),
            True,
            "MobileNet v1, 13 depthwise-separable pairs (FedFN, FedBABU)",
            1,
            bn="batch",
        ),
        Model(
            "mobilenetv2",
            made_by("mobilenet.v2", cifar=True),
            True,
            "CIFAR MobileNetV2 with 1x1-conv shortcuts (FedETF)",
            1,
        ),
        Model(
            "mobilenetv2_std",
            made_by("mobilenet.v2", cifar=False),
            True,
            "MobileNetV2 with standard inverted residuals, CIFAR strides (CCVR, FedFN appendix)",
            1,
        ),
        Model(
            "efficientnet_b0",
            made_by("efficientnet.b0"),
            True,
            "16 blocks with squeeze-excite, no last 1x1 conv (FedETF)",
            1,
        ),
        Model(
            "mlpnet",
            made_by("mlp.mlp", widths=(1024, 1024, 128)),
            True,
            "3 fc 1024-1024-128 (FedAvg_ETF + GMV on FEMNIST)",
            1,
            images=False,
        ),
        Model(
            "mlpnet_nobias",
            made_by("mlp.mlp", widths=(1024, 1024, 128)),
            False,
            "mlpnet with a classifier without bias (FedAvg_ETF + GMV)",
            1,
            images=False,
        ),
        Model("cnn4", made_by("cnn.cnn4"), True, "4 conv 3x3 of 64 channels, each pooled (FedBABU)", 16, bn="batch"),
        Model(
            "mlp",
            made_by("mlp.mlp", widths=(200, 200)),
            True,
            "2 fc of 200, for tables and small images (in no paper)",
            1,
            images=False,
        ),
        Model(
            "mlp_small",
            made_by("mlp.mlp", widths=(64,)),
            True,
            "1 fc of 64, for tables and tests (in no paper)",
            1,
            images=False,
        ),
    )
}


def register_model(name: str, make: Callable[..., nn.Module], *, about: str = "") -> None:
    """Register a network of your own under a name, for `--model NAME` and `headway list models`.

    Args:
        name: Small letters, digits, - and _. A built-in name is refused, and one that another
            file or module registered; one's own is replaced.
        make: A class or function that returns a `torch.nn.Module` whose last layer is `nn.Linear`, the classifier, as
            for `--model file.py:Name`. It is called with those of `classes`, `num_classes`, `shape` (of one sample)
            and `in_channels` that are parameters of it; other parameters need defaults.
        about: One line for the list; by default the first line of the docstring.

    Raises:
        ModelError: The name cannot be used, or `make` cannot be called.

    >>> from torch import nn
    >>> from headway.models import MODELS, register_model
    >>> def two_layers(classes, shape):
    ...     return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 8), nn.ReLU(), nn.Linear(8, classes))
    >>> register_model("two-layers", two_layers, about="8 hidden units")
    >>> MODELS["two-layers"].about
    '8 hidden units'
    """
    call = "register_model"
    own = {known for known, model in MODELS.items() if model.make is not None}
    check_new_name("models", call, name, MODELS.keys() - own, make, ModelError)
    if not callable(make) or (hasattr(make, "state_dict") and not isinstance(make, type)):  # not a built network
        raise ModelError(
            f"{call}: '{name}' is of type {type(make).__name__}; give a class, or a function that returns a network"
        )
    line = about_of(make, about)
    MODELS[name] = Model(name, made_by("custom.body_of", make=make), True, line, 1, images=False, make=make)
    claim("models", name, make)


def unregister_model(name: str) -> None:
    """Remove a model that `register_model` added."""
    MODELS.pop(name)
    release("models", name)
