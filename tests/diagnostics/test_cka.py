"""CKA: the formula on numbers done by hand, its invariances, and the layers of any net."""

from __future__ import annotations

import pytest
import torch
from diagnosed import check_whole, finished
from torch import nn

from headway.diagnostics.cka import MEMORY, cka, debiased, gram_row, inputs_within, linear_cka, products
from headway.diagnostics.finding import NotApplicable
from headway.diagnostics.layers import activations, layers_of, rows
from headway.heads import Head
from headway.models import body
from headway.models.net import Net
from headway.tree import stream


def random(*shape: int, name: str = "x") -> torch.Tensor:
    return torch.randn(*shape, generator=stream("cka", name), dtype=torch.float64)


def test_by_hand() -> None:
    """X = (1,0),(0,1),(-1,-1) and Y = (1),(0),(-1), both centred. X^T Y = (2, 1), squared 5;
    X^T X = [[2, 1], [1, 2]] of norm sqrt(10); Y^T Y = 2. CKA = 5 / (2 sqrt(10))."""
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    y = torch.tensor([[1.0], [0.0], [-1.0]])
    assert linear_cka(x, y) == pytest.approx(5 / (2 * 10**0.5), abs=1e-12)
    assert linear_cka(x + 7, y - 3) == pytest.approx(5 / (2 * 10**0.5), abs=1e-12)  # columns are centred first


def test_a_representation_is_like_itself_turned_and_scaled() -> None:
    x = random(30, 6)
    turn = torch.linalg.qr(random(6, 6, name="turn"))[0]
    assert linear_cka(x, x) == pytest.approx(1.0, abs=1e-12)
    assert linear_cka(x, -3.5 * x @ turn + 2) == pytest.approx(1.0, abs=1e-12)
    assert linear_cka(x, x @ random(6, 6, name="other")) < 0.99  # any linear map is too many
    assert linear_cka(x, random(30, 6, name="another")) < 0.6


def test_gram_form_equals_feature_form() -> None:
    x, y = random(25, 40), random(25, 3, name="y") + 0.2 * random(25, 40)[:, :3]
    found = products(torch.stack([gram_row(x), gram_row(y), gram_row(1e-6 * x)]), block=7)
    assert found[0, 1] == pytest.approx(linear_cka(x, y), abs=1e-6)
    assert found[0, 0] == pytest.approx(1.0, abs=1e-6)
    assert found[0, 2] == pytest.approx(1.0, abs=1e-6)


def both(*inputs: torch.Tensor) -> tuple:
    rows = torch.stack([gram_row(x) for x in inputs])
    plain = products(rows)
    return plain, debiased(plain, rows, len(inputs[0]))


def test_debiased_by_hand() -> None:
    """x = (1, -1, 0, 0), y = (1, 0, -1, 0), n = 4; off the diagonal K has -1 at (1, 2), L at (1, 3).

    n (n - 3) HSIC_1(K, L) = tr(KL) + 1'K1 1'L1 / ((n-1)(n-2)) - 2/(n-2) 1'KL1 = 0 + 4/6 - 1 = -1/3;
    of K with itself 2 + 4/6 - 2 = 2/3, and of L too. So -1/2, where the plain one is (1 / 2)^2.
    """
    plain, found = both(torch.tensor([[1.0], [-1.0], [0.0], [0.0]]), torch.tensor([[1.0], [0.0], [-1.0], [0.0]]))
    assert plain[0, 1] == pytest.approx(0.25, abs=1e-6)
    assert found[0, 1] == pytest.approx(-0.5, abs=1e-6)
    assert found[0, 0] == pytest.approx(1.0, abs=1e-6)


def test_wide_layers_of_few_inputs_look_alike_only_to_the_plain_one() -> None:
    plain, found = both(random(40, 600), random(40, 600, name="unrelated"))
    assert plain[0, 1] > 0.9
    assert abs(found[0, 1]) < 0.1
    plain, found = both(random(400, 3), random(400, 3) + random(400, 3, name="noise"))
    assert found[0, 1] == pytest.approx(plain[0, 1], abs=0.01)  # with many inputs of few numbers they agree


def test_a_layer_that_says_the_same_of_every_input_has_no_similarity() -> None:
    found = products(torch.stack([gram_row(torch.ones(5, 3)), gram_row(random(5, 3))]))
    assert found[0, 0] != found[0, 0]
    assert found[0, 1] != found[0, 1]
    assert found[1, 1] == pytest.approx(1.0, abs=1e-6)


def test_memory_bounds_the_inputs() -> None:
    n = inputs_within(MEMORY, clients=10, layers=12)
    assert 4 * 10 * 12 * n * (n + 1) / 2 <= 1.01 * MEMORY
    assert inputs_within(MEMORY, clients=2, layers=3) == 2000


def net_of(name: str, shape: tuple[int, ...]) -> Net:
    made = body(name, shape, bn="running", seed_stream=stream("body"))
    return Net(made, Head(int(made.dim), 10, stream("head")), 10).eval()  # type: ignore[arg-type]


def test_layers_of_a_plain_net_are_read_after_their_activation() -> None:
    net, x = net_of("moon_cnn", (3, 32, 32)), torch.randn(5, 3, 32, 32, generator=stream("images"))
    layers = layers_of(net, x)
    assert [a.name for a in layers] == ["conv1", "conv2", "fc1", "fc2", "project1", "features", "logits"]
    assert [a.width for a in layers] == [1176, 400, 120, 84, 84, 256, 10]  # conv1: 6 x 14 x 14 behind its pool
    found = activations(net, x, layers, batch=2)
    assert torch.equal(found["fc1"] >= 0, torch.ones(5, 120, dtype=torch.bool))
    assert torch.allclose(found["features"], net.features_of(x), atol=1e-5)
    with torch.no_grad():
        first = nn.functional.max_pool2d(torch.relu(net.body.conv1(x)), 2)  # type: ignore[operator]
    assert torch.allclose(found["conv1"], first.flatten(1), atol=1e-5)
    assert not net.body.conv1._forward_hooks  # type: ignore[union-attr]


def test_wide_maps_are_averaged() -> None:
    net, x = net_of("cnn4", (3, 32, 32)), torch.randn(5, 3, 32, 32, generator=stream("images"))
    layers = layers_of(net, x)
    assert (layers[0].width, layers[0].positions) == (64 * 16, "4x4")  # 64 x 32 x 32 > 4096, before its pool
    seen: list[torch.Tensor] = []
    relu = next(m for m in net.body.modules() if isinstance(m, nn.ReLU))
    with torch.no_grad():
        handle = relu.register_forward_hook(lambda module, inputs, out: seen.append(out.clone()))
        net.features(x)
        handle.remove()
    wanted = seen[0].unfold(2, 8, 8).unfold(3, 8, 8).mean((4, 5))
    assert torch.allclose(activations(net, x, layers)[layers[0].name].view(5, 64, 4, 4), wanted, atol=1e-5)


def test_layers_of_a_deep_net_are_blocks_evenly_chosen() -> None:
    layers = layers_of(net_of("densenet121", (3, 8, 8)), torch.zeros(1, 3, 8, 8))
    assert len(layers) == 12
    assert layers[0].name == "conv"
    assert [a.name for a in layers[-2:]] == ["features", "logits"]
    names = [a.name for a in layers_of(net_of("resnet20", (3, 8, 8)), torch.zeros(2, 3, 8, 8))]
    assert names[:4] == ["conv1", "layer1.0", "layer1.1", "layer1.2"]


def test_a_net_wrapped_in_another_is_looked_into_and_a_layer_that_runs_twice_is_two() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.again, self.act = nn.Linear(4, 5), nn.Linear(5, 5), nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.act(self.first(x))
            return self.act(self.again(self.act(self.again(x)))) * 2

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.dim = Inner(), 5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    net = Net(Outer(), Head(5, 3, stream("head")), 3).eval()
    layers = layers_of(net, torch.randn(3, 4, generator=stream("x")))
    assert [a.name for a in layers] == ["inner.first", "inner.again", "inner.again#2", "features", "logits"]
    found = activations(net, torch.randn(3, 4, generator=stream("x")), layers)
    assert torch.allclose(found["inner.again#2"] * 2, found["features"])


def test_wide_maps_are_averaged_and_narrow_ones_are_not() -> None:
    assert rows(torch.zeros(2, 4, 32, 32)).shape == (2, 4096)
    assert rows(torch.zeros(2, 5, 32, 32)).shape == (2, 80)
    assert rows(torch.zeros(2, 5000, 2, 3)).shape == (2, 30000)  # fewer positions than 4 x 4: nothing to average
    assert rows(torch.zeros(2, 100, 50)).shape == (2, 50)


@pytest.mark.parametrize("recipe", ["fedavg", "fedtc", "local", "fedetf"])
def test_on_a_run(recipe: str, tmp_path) -> None:
    subject = finished(recipe, tmp_path / "run")
    found = cka(subject)
    check_whole(found, tmp_path)
    assert [row["layer"] for row in found.tables["layers"]][-2:] == ["features", "logits"]
    assert (
        len(found.tables["pairs"])
        == len(found.tables["layers"]) * len(subject.clients) * (len(subject.clients) - 1) / 2
    )
    assert all(0 <= row["cka"] <= 1 for row in found.tables["pairs"])
    assert cka(subject).tables == found.tables


def test_one_client_has_nobody_to_be_like(tmp_path) -> None:
    with pytest.raises(NotApplicable, match="one client"):
        cka(finished("centralized", tmp_path / "run"))
