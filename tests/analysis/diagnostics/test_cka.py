"""CKA: the formula on numbers done by hand, its invariances, and the layers of any net."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diagnosed import check_whole, finished
from torch import nn

from headway.analysis.diagnostics import similarity
from headway.analysis.diagnostics.cka import cka
from headway.analysis.diagnostics.finding import NotApplicable
from headway.analysis.diagnostics.layers import Layer, activations, layers_of, rows
from headway.analysis.diagnostics.similarity import (
    Stored,
    by_columns,
    by_inputs,
    debiased,
    diagonals,
    groups,
    inner_products,
    plain,
    similarities,
)
from headway.base.tree import stream
from headway.models import body
from headway.models.heads import Head
from headway.models.net import Net


def linear_cka(x: torch.Tensor, y: torch.Tensor) -> float:
    """||X^T Y||_F^2 / (||X^T X||_F ||Y^T Y||_F) of column-centred X [N, p], Y [N, q], as it is written.

    The paper prints squared norms below the line; those would not make CKA(X, X) = 1.
    """
    x, y = (v.double() - v.double().mean(0) for v in (x, y))
    return float((x.T @ y).square().sum() / ((x.T @ x).norm() * (y.T @ y).norm()))


def kept(folder: Path, *inputs: torch.Tensor) -> list[Stored]:
    found = []
    for i, x in enumerate(inputs):
        x.float().numpy().tofile(folder / str(i))
        found.append(Stored(folder / str(i), x.float().double().mean(0), len(x)))
    return found


def all_activations(net: Net, x: torch.Tensor, layers: list[Layer], batch: int = 256) -> dict[str, torch.Tensor]:
    parts = list(activations(net, x, layers, batch))
    return {layer.name: torch.cat([part[layer.name] for part in parts]) for layer in layers}


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


def test_both_ways_to_the_inner_products_are_the_formula(tmp_path) -> None:
    x = random(25, 40).float()
    y = 1e-6 * (x + random(25, 40, name="y").float()) + 3  # small beside its mean, as float32 can still tell
    models = kept(tmp_path, x, y, 1e6 * x)
    for h in (by_columns(models), by_inputs(models, tile=7), inner_products(models)):
        found = plain(h)
        assert found[0, 1] == pytest.approx(linear_cka(x, y), abs=1e-12)
        assert found[0, 2] == pytest.approx(1.0, abs=1e-6)
        assert found.diagonal() == pytest.approx([1.0] * 3, abs=1e-12)
        assert found == pytest.approx(found.T, abs=1e-12)
    assert torch.allclose(by_columns(models), by_inputs(models, tile=7), rtol=1e-12)


def test_the_cheaper_way_is_taken(tmp_path, monkeypatch) -> None:
    """Two models: 2 p <= N goes by columns, more by inputs, and so does what is very wide."""
    monkeypatch.setattr(similarity, "by_columns", lambda models: "columns")
    monkeypatch.setattr(similarity, "by_inputs", lambda models: "inputs")
    for width, wanted in ((10, "columns"), (11, "inputs")):
        assert inner_products(kept(tmp_path, random(20, width), random(20, width))) == wanted
    monkeypatch.setattr(similarity, "WIDE", 5)
    assert inner_products(kept(tmp_path, random(20, 6), random(20, 6))) == "inputs"


def both(folder: Path, *inputs: torch.Tensor) -> tuple:
    models = kept(folder, *inputs)
    h = inner_products(models)
    return plain(h), debiased(h, diagonals(models, tile=3))


def test_debiased_by_hand(tmp_path) -> None:
    """x = (1, -1, 0, 0), y = (1, 0, -1, 0), n = 4; off the diagonal K has -1 at (1, 2), L at (1, 3).

    n (n - 3) HSIC_1(K, L) = tr(KL) + 1'K1 1'L1 / ((n-1)(n-2)) - 2/(n-2) 1'KL1 = 0 + 4/6 - 1 = -1/3;
    of K with itself 2 + 4/6 - 2 = 2/3, and of L too. So -1/2, where the plain one is (1 / 2)^2.
    """
    x, y = torch.tensor([[1.0], [-1.0], [0.0], [0.0]]), torch.tensor([[1.0], [0.0], [-1.0], [0.0]])
    biased, found = both(tmp_path, x, y)
    assert biased[0, 1] == pytest.approx(0.25, abs=1e-6)
    assert found[0, 1] == pytest.approx(-0.5, abs=1e-6)
    assert found[0, 0] == pytest.approx(1.0, abs=1e-6)


def test_wide_layers_of_few_inputs_look_alike_only_to_the_plain_one(tmp_path) -> None:
    biased, found = both(tmp_path, random(40, 600), random(40, 600, name="unrelated"))
    assert biased[0, 1] > 0.9
    assert abs(found[0, 1]) < 0.1
    biased, found = both(tmp_path, random(400, 3), random(400, 3) + random(400, 3, name="noise"))
    assert found[0, 1] == pytest.approx(biased[0, 1], abs=0.01)  # with many inputs of few numbers they agree


def test_a_layer_that_says_the_same_of_every_input_has_no_similarity(tmp_path) -> None:
    found, _ = both(tmp_path, torch.full((5, 3), 0.1), random(5, 3))
    assert found[0, 0] != found[0, 0]
    assert found[0, 1] != found[0, 1]
    assert found[1, 1] == pytest.approx(1.0, abs=1e-12)


def test_layers_take_turns_on_the_disk() -> None:
    layers = [Layer(name, width, "") for name, width in (("a", 30), ("b", 20), ("c", 60), ("d", 10))]
    assert [[a.name for a in group] for group in groups(layers, 2, most=100)] == [["a", "b"], ["c"], ["d"]]


def test_models_run_again_when_the_disk_holds_few_layers(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    nets = [net_of("mlp", (12,), seed) for seed in range(3)]
    x = random(70, 12).float()
    layers = layers_of(nets[0], x)
    seen: list[Net] = []

    def models() -> list[Net]:
        seen.extend(nets)
        return nets

    once = list(similarities(models, 3, x, layers))
    assert len(seen) == 3
    again = list(similarities(models, 3, x, layers, on_disk=1))
    assert len(seen) == 3 + 3 * len(layers)
    wanted = [all_activations(net, x, layers) for net in nets]
    for (layer, found, fair), (_, other, other_fair) in zip(once, again, strict=True):
        assert (found == other).all()
        assert (fair == other_fair).all()
        assert found[0, 2] == pytest.approx(linear_cka(wanted[0][layer.name], wanted[2][layer.name]), abs=1e-12)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told(monkeypatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(similarity, "store", full)
    net, x = net_of("mlp", (12,)), random(10, 12).float()
    with pytest.raises(NotApplicable, match=r"No space left on device.*set TMPDIR"):
        list(similarities(lambda: [net, net], 2, x, layers_of(net, x)))


def net_of(name: str, shape: tuple[int, ...], seed: int = 0) -> Net:
    made = body(name, shape, bn="running", seed_stream=stream("body", seed))
    return Net(made, Head(int(made.dim), 10, stream("head")), 10).eval()  # type: ignore[arg-type]


def test_layers_of_a_plain_net_are_read_after_their_activation() -> None:
    net, x = net_of("moon_cnn", (3, 32, 32)), torch.randn(5, 3, 32, 32, generator=stream("images"))
    layers = layers_of(net, x)
    assert [a.name for a in layers] == ["conv1", "conv2", "fc1", "fc2", "project1", "features", "logits"]
    assert [a.width for a in layers] == [1176, 400, 120, 84, 84, 256, 10]  # conv1: 6 x 14 x 14 behind its pool
    found = all_activations(net, x, layers, batch=2)
    assert torch.equal(found["fc1"] >= 0, torch.ones(5, 120, dtype=torch.bool))
    assert torch.allclose(found["features"], net.features_of(x), atol=1e-5)
    with torch.no_grad():
        first = nn.functional.max_pool2d(torch.relu(net.body.conv1(x)), 2)  # type: ignore[operator]
    assert torch.allclose(found["conv1"], first.flatten(1), atol=1e-5)
    assert not net.body.conv1._forward_hooks  # type: ignore[union-attr]


def test_wide_maps_are_averaged() -> None:
    net, x = net_of("cnn4", (3, 32, 32)), torch.randn(5, 3, 32, 32, generator=stream("images"))
    layers = layers_of(net, x)
    assert (layers[0].width, layers[0].positions) == (64 * 4, "2x2")  # 64 x 32 x 32 > 2048, before its pool
    seen: list[torch.Tensor] = []
    relu = next(m for m in net.body.modules() if isinstance(m, nn.ReLU))
    with torch.no_grad():
        handle = relu.register_forward_hook(lambda module, inputs, out: seen.append(out.clone()))
        net.features(x)
        handle.remove()
    wanted = seen[0].unfold(2, 16, 16).unfold(3, 16, 16).mean((4, 5))
    assert torch.allclose(all_activations(net, x, layers)[layers[0].name].view(5, 64, 2, 2), wanted, atol=1e-5)


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
    for p in net.body.parameters():
        nn.init.constant_(p, 0.5)  # drawn at random, ReLU could leave nothing but zeros, and twice zero is zero
    x = torch.rand(3, 4, generator=stream("x"))
    layers = layers_of(net, x)
    assert [a.name for a in layers] == ["inner.first", "inner.again", "inner.again#2", "features", "logits"]
    found = all_activations(net, x, layers)
    assert torch.allclose(found["inner.again#2"] * 2, found["features"])


def test_wide_maps_are_averaged_and_narrow_ones_are_not() -> None:
    """To 4 x 4 positions, or to 2 x 2 or one where that leaves more than 256 numbers."""
    for shape, width, positions in [
        ((2, 32, 32), 2048, ""),
        ((16, 32, 32), 256, "4x4"),
        ((17, 32, 32), 68, "2x2"),
        ((64, 8, 8), 256, "2x2"),
        ((65, 8, 8), 65, "1x1"),
        ((40, 1, 100), 160, "1x4"),
        ((5000, 1, 1), 5000, "1x1"),
        ((100, 50), 50, "1"),
        ((9000,), 9000, ""),
    ]:
        found, averaged = rows(torch.zeros(2, *shape))
        assert (found.shape, averaged) == ((2, width), positions), shape


def test_every_layer_of_a_resnet20_on_cifar_fits() -> None:
    layers = layers_of(net_of("resnet20", (3, 32, 32)), torch.zeros(2, 3, 32, 32))
    assert [a.width for a in layers] == [256] * 4 + [128] * 3 + [256] * 3 + [64, 10]
    assert len(list(groups(layers, 4 * 20 * 10_000))) == 1  # 20 clients' models run once


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
