"""The server's SGD: torch.optim's bits, without torch's compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from headway.methods.parts.sgd import SGD


@pytest.mark.parametrize(("momentum", "decay"), [(0.9, 0.0), (0.9, 1e-2), (0.0, 1e-2)])
def test_five_steps_are_those_of_torch_bit_for_bit(momentum, decay):
    rng = torch.Generator().manual_seed(0)
    start = [torch.randn(7, 5, generator=rng), torch.randn(3, generator=rng)]
    ours, theirs = ([v.clone().requires_grad_() for v in start] for _ in range(2))
    one = SGD(ours, lr=0.1, momentum=momentum, weight_decay=decay)
    other = torch.optim.SGD(theirs, lr=0.1, momentum=momentum, weight_decay=decay)
    for step in range(5):
        for params, sgd in ((ours, one), (theirs, other)):
            params[0].square().sum().backward()
            if step:  # the second parameter has no gradient in the first step
                params[1].exp().sum().backward()
            sgd.step()
            for p in params:
                p.grad = None
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert not torch.equal(ours[0], start[0])


def test_a_step_by_hand():
    w = torch.tensor([1.0], requires_grad=True)
    sgd = SGD([w], lr=0.5, momentum=0.5, weight_decay=0.1)
    for g in (1.0, 2.0):
        w.grad = torch.tensor([g])
        sgd.step()
    # m = 1 + 0.1 = 1.1, w = 1 - 0.55 = 0.45; m = 0.55 + 2 + 0.045 = 2.595, w = 0.45 - 1.2975
    assert float(w.detach()) == pytest.approx(-0.8475)


def test_a_run_that_calibrates_does_not_import_torchs_compiler(tmp_path):
    code = (
        "import headway, sys; headway.run('fedavg+ccvr(epochs=1)+spread', clients=2, rounds=1, train_size=60, "
        f"model='mlp_small', out={str(tmp_path / 'r')!r}); sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
