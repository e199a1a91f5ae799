"""A body for many clients at once: what each client's body gives, for rows of known layers alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from headway.models import body
from headway.models.norm import Stack
from headway.models.stacked import stacked

KNOWN = {
    "mlp": lambda: body("mlp", (30,), seed_stream=torch.Generator()),
    "no bias": lambda: nn.Sequential(nn.Linear(30, 8, bias=False), nn.Tanh(), nn.Linear(8, 5)),
    "norm": lambda: nn.Sequential(nn.Linear(30, 8), nn.LayerNorm(8), nn.GELU(), nn.Identity(), nn.Linear(8, 5)),
    "plain norm": lambda: nn.Sequential(nn.Linear(30, 8), nn.LayerNorm(8, elementwise_affine=False), nn.SiLU()),
    "stack": lambda: Stack(4, flatten=nn.Flatten(), fc=nn.Linear(30, 4), relu=nn.ReLU()),
}


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(30, 8), nn.Linear(8, 4)

    def forward(self, x):
        return torch.relu(self.b(self.a(torch.flatten(x, 1)).relu()))


@pytest.mark.parametrize("kind", [*KNOWN, "functional"])
def test_each_client_gets_its_own_features_and_gradients(kind):
    torch.manual_seed(0)
    nets = [(Functional if kind == "functional" else KNOWN[kind])() for _ in range(3)]
    for net in nets:
        for p in net.parameters():
            nn.init.normal_(p, std=0.3)
    run, x = stacked(nets[0]), torch.randn(3, 6, 30)
    own = [dict(net.named_parameters(prefix="body")) for net in nets]
    params = {name: torch.stack([each[name] for each in own]).detach().requires_grad_() for name in own[0]}
    h = run(nets[0], params, x)
    grads = torch.autograd.grad(h.square().sum(), list(params.values()))
    for i, net in enumerate(nets):
        own = net(x[i])
        assert torch.allclose(h[i], own, atol=1e-5)
        for stack, g in zip(grads, torch.autograd.grad(own.square().sum(), list(net.parameters())), strict=True):
            assert torch.allclose(stack[i], g, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()),
        nn.Sequential(nn.Linear(30, 4), nn.BatchNorm1d(4)),
        nn.Sequential(nn.Linear(30, 4), nn.Dropout()),
        nn.Sequential(nn.Linear(30, 4), nn.Softmax(1)),  # over samples, where there is a leading dimension
        nn.Sequential(nn.Linear(30, 4), nn.Flatten(0)),
        nn.Sequential(nn.LayerNorm((5, 6)), nn.Flatten()),
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(30, 4))),
    ],
)
def test_other_layers_are_not_known(net):
    assert stacked(net) is None


class Sum(nn.Module):
    """Not a row: its input is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(30, 30)

    def forward(self, x):
        return torch.relu(self.fc(x)) + x


def test_what_is_no_row_is_not_known():
    assert stacked(Sum()) is None
    assert stacked(copy.deepcopy(Functional())) is not None
