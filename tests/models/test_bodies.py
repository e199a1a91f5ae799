"""The models of the papers: sizes, shapes, first weights, normalisation, and what they refuse."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from headway.base.errors import ModelError
from headway.base.tree import stream
from headway.models import MODELS, body
from headway.models.norm import groups, norm

CIFAR, MNIST = (3, 32, 32), (1, 28, 28)

# parameters of the papers' models, with the linear classifier of C classes
COUNTS = [
    ("mcmahan_cnn", CIFAR, 10, 878_538),
    ("mcmahan_cnn_padded", CIFAR, 10, 2_156_490),
    ("mcmahan_cnn_padded", MNIST, 10, 1_663_370),
    ("moon_cnn", CIFAR, 10, 92_626),
    ("vgg11", CIFAR, 10, 9_750_922),
    ("vgg11", CIFAR, 100, 9_797_092),
    ("vgg11_nofc", CIFAR, 10, 9_225_600),
    ("vgg11_nofc", CIFAR, 100, 9_271_680),
    ("resnet20", CIFAR, 10, 272_474),
    ("resnet20", CIFAR, 100, 278_324),
    ("resnet32", CIFAR, 10, 466_906),
    ("resnet32", CIFAR, 100, 472_756),
    ("resnet56", CIFAR, 10, 855_770),
    ("resnet56", CIFAR, 100, 861_620),
    ("wrn56_4", CIFAR, 10, 13_628_234),
    ("resnet18", CIFAR, 10, 11_173_962),
    ("resnet18", CIFAR, 100, 11_220_132),
    ("resnet18", (3, 64, 64), 200, 11_271_432),
    ("resnet18_tv", CIFAR, 10, 11_181_642),
    ("resnet18_tv", CIFAR, 100, 11_227_812),
    ("densenet121", CIFAR, 10, 6_956_298),
    ("mobilenet", CIFAR, 10, 3_217_226),
    ("mobilenet", CIFAR, 100, 3_309_476),
    ("mobilenetv2", CIFAR, 10, 2_296_922),
    ("mobilenetv2", CIFAR, 100, 2_412_212),
    ("mobilenetv2_std", CIFAR, 10, 2_236_682),
    ("mobilenetv2_std", CIFAR, 100, 2_351_972),
    ("efficientnet_b0", CIFAR, 10, 6_806_794),
    ("mlpnet", MNIST, 62, 1_992_638),
    ("mlpnet_nobias", MNIST, 62, 1_992_576),
    ("cnn4", CIFAR, 10, 115_658),
    # not in the table; counted by hand: resnet8 = stem 464 + blocks 4,672 + 14,528 + 57,728 + classifier 650,
    # mlp on 1x8x8 = 64*200+200 + 200*200+200 + 2,010, mlp_small = 64*64+64 + 650
    ("resnet8", CIFAR, 10, 78_042),
    ("mlp", (1, 8, 8), 10, 55_210),
    ("mlp_small", (64,), 10, 4_810),
]

DIMS = {
    "mcmahan_cnn": 512, "mcmahan_cnn_padded": 512, "moon_cnn": 256, "vgg11": 512, "vgg11_nofc": 512,
    "resnet8": 64, "resnet20": 64, "resnet32": 64, "resnet56": 64, "wrn56_4": 256, "resnet18": 512,
    "resnet18_tv": 512, "densenet121": 1024, "mobilenet": 1024, "mobilenetv2": 1280, "mobilenetv2_std": 1280,
    "efficientnet_b0": 320, "mlpnet": 128, "mlpnet_nobias": 128, "cnn4": 256, "mlp": 200, "mlp_small": 64,
}  # fmt: skip

# side of the map that is averaged, for a 32x32 image: the strides and pools of the table
POOLED = {
    "vgg11": 1, "vgg11_nofc": 1, "resnet8": 8, "resnet20": 8, "resnet32": 8, "resnet56": 8, "wrn56_4": 8,
    "resnet18": 4, "resnet18_tv": 1, "densenet121": 4, "mobilenet": 2, "mobilenetv2": 4, "mobilenetv2_std": 4,
    "efficientnet_b0": 2,
}  # fmt: skip

HEAVY = {"wrn56_4", "resnet18", "resnet18_tv", "densenet121", "vgg11", "vgg11_nofc"}
LIGHT = sorted(MODELS.keys() - HEAVY)
KINDS = [n for n in MODELS if n not in ("resnet32", "resnet56", "wrn56_4", "mlpnet_nobias")]  # same code, deeper


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Such small work waits longer for a second thread than it takes, the more so on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def on_meta(name: str, shape: tuple[int, ...], bn: str = "running") -> nn.Module:
    """The body without memory: shapes can be asked, nothing is computed."""
    with torch.device("meta"):
        return MODELS[name].build(shape, bn).eval()


def inputs(*shape: int, n: int = 2) -> torch.Tensor:
    return torch.randn(n, *shape, generator=stream("inputs", shape))


@pytest.mark.parametrize(("name", "shape", "classes", "count"), COUNTS)
def test_the_number_of_parameters_is_the_published_one(name, shape, classes, count):
    b = on_meta(name, shape)
    head = nn.Linear(b.dim, classes, bias=MODELS[name].bias, device="meta")
    assert sum(p.numel() for m in (b, head) for p in m.parameters()) == count


def test_every_model_has_a_count_and_a_feature_width_in_these_tests():
    assert {row[0] for row in COUNTS} == set(DIMS) == set(MODELS)
    assert all(model.name == name and "\n" not in model.about for name, model in MODELS.items())


@pytest.mark.parametrize("name", MODELS)
def test_feature_width_and_the_map_before_the_mean_are_the_published_ones(name):
    b = on_meta(name, CIFAR)
    assert b.dim == DIMS[name]
    averaged = []
    if name in POOLED:
        b.pool.register_forward_pre_hook(lambda _, args: averaged.append(tuple(args[0].shape[2:])))
    assert b(torch.empty(2, *CIFAR, device="meta")).shape == (2, b.dim)
    assert averaged == ([(POOLED[name],) * 2] if name in POOLED else [])


@pytest.mark.parametrize("shape", [MNIST, (2, 33, 47)])
@pytest.mark.parametrize("name", KINDS)
def test_other_channels_and_sizes_are_taken(name, shape):
    if MODELS[name].min_size > min(shape[1:]):
        pytest.skip("too small for this model, which another test covers")
    b = on_meta(name, shape)
    assert b(torch.empty(2, *shape, device="meta")).shape == (2, b.dim)


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize("name", KINDS)
def test_the_smallest_side_is_taken_and_one_less_is_not(name):
    side = MODELS[name].min_size
    b = on_meta(name, (1, side, side)).train()
    assert b(torch.empty(2, 1, side, side, device="meta")).shape == (2, b.dim)
    if side > 1:
        with pytest.raises(ModelError, match=f"'{name}'.*1x{side - 1}x{side}.*smallest side is {side}"):
            body(name, (1, side - 1, side), seed_stream=stream(0))
        with pytest.raises(RuntimeError):  # the bound is not stricter than the network: it would fail
            on_meta(name, (1, side - 1, side - 1))(torch.empty(2, 1, side - 1, side - 1, device="meta"))


@pytest.mark.parametrize("name", ["resnet8", "resnet20", "mlp", "mlp_small", "mlpnet", "mcmahan_cnn_padded"])
def test_digits_of_8x8_are_taken(name):
    b = body(name, (1, 8, 8), seed_stream=stream(0))
    h = b(inputs(1, 8, 8))
    assert h.shape == (2, b.dim)
    assert h.isfinite().all()


@pytest.mark.parametrize("name", ["mlp", "mlp_small", "mlpnet"])
def test_tables_are_taken_by_perceptrons(name):
    b = body(name, (13,), seed_stream=stream(0))
    assert b(inputs(13)).shape == (2, b.dim)


@pytest.mark.parametrize("name", MODELS)
def test_features_are_finite_and_every_parameter_is_used(name):
    side = max(MODELS[name].min_size, 8)
    b = body(name, (3, side, side), seed_stream=stream(1))
    h = b(inputs(3, side, side, n=4))
    assert h.isfinite().all()
    (h * inputs(b.dim, n=4)).sum().backward()  # random weights: a plain sum is constant after a normalisation
    idle = [k for k, p in b.named_parameters() if p.grad is None]
    assert not idle
    assert all(p.grad.isfinite().all() for p in b.parameters())


@pytest.mark.parametrize("name", LIGHT)
def test_the_same_stream_gives_the_same_weights_and_leaves_torchs_own_numbers_alone(name):
    shape = (1, 16, 16)
    before = torch.get_rng_state()
    first = body(name, shape, seed_stream=stream(7, "init"))
    torch.rand(3)
    again = body(name, shape, seed_stream=stream(7, "init")).state_dict()
    assert all(torch.equal(v, again[k]) for k, v in first.state_dict().items())
    torch.set_rng_state(before)
    other = body(name, shape, seed_stream=stream(8, "init"))
    assert torch.equal(torch.get_rng_state(), before)
    weight = next(k for k, p in first.named_parameters() if p.ndim > 1)
    assert not torch.equal(first.get_parameter(weight), other.get_parameter(weight))


def test_a_stream_that_was_used_before_still_gives_the_same_weights():
    used = stream("init")
    torch.rand(5, generator=used)
    a = body("mlp_small", (4,), seed_stream=used)
    b = body("mlp_small", (4,), seed_stream=stream("init"))
    assert torch.equal(a.fc1.weight, b.fc1.weight)


@pytest.mark.parametrize("name", ["vgg11", "vgg11_nofc", "resnet18_tv"])
def test_he_weights_over_fan_out_where_the_papers_codes_have_them(name):
    b = body(name, CIFAR, seed_stream=stream(2))
    for conv in (m for m in b.modules() if isinstance(m, nn.Conv2d)):
        k, out = conv.kernel_size[0], conv.out_channels
        assert conv.weight.std().item() == pytest.approx((2 / (k * k * out)) ** 0.5, rel=0.1)
        assert conv.bias is None or not conv.bias.any()


def test_the_head_of_vgg11_nofc_starts_at_normal_hundredths_from_its_stream():
    init = MODELS["vgg11_nofc"].init_head
    w = init(torch.empty(100, 512), stream("head"))
    assert w.std().item() == pytest.approx(0.01, rel=0.05)
    assert torch.equal(w, init(nn.Parameter(torch.zeros(100, 512)), stream("head")))
    assert [n for n, m in MODELS.items() if m.init_head] == ["vgg11_nofc"]


def test_only_the_two_papers_heads_have_no_bias():
    assert {n for n, m in MODELS.items() if not m.bias} == {"vgg11_nofc", "mlpnet_nobias"}


def test_the_papers_batch_statistics_are_on_record():
    assert {n for n, m in MODELS.items() if m.bn == "batch"} == {"mobilenet", "cnn4"}


def test_group_sizes_divide_stay_below_33_and_leave_two_channels_each():
    for c in range(1, 1300):
        g = groups(c)
        assert c % g == 0
        assert 1 <= g <= 32
        assert c // g >= 2 or c == 1
        assert not [h for h in range(g + 1, 33) if c % h == 0 and c // h >= 2]  # none larger would do


def test_norm_layers_follow_the_policy():
    assert norm(8, "running").running_mean is not None
    assert norm(8, "batch").running_mean is None
    assert isinstance(norm(8, "group"), nn.GroupNorm)


@pytest.mark.parametrize(("bn", "alone"), [("running", True), ("batch", False), ("group", True)])
@pytest.mark.parametrize("name", ["resnet8", "cnn4", "mobilenetv2_std"])
def test_at_test_time_only_batch_statistics_make_images_depend_on_each_other(name, bn, alone):
    b = body(name, (1, 16, 16), bn=bn, seed_stream=stream(3)).eval()
    x = inputs(1, 16, 16, n=4)
    assert torch.allclose(b(x)[:2], b(x[:2]), atol=1e-4) == alone


@pytest.mark.parametrize("name", MODELS)
def test_only_the_running_policy_keeps_buffers_and_all_have_the_same_parameters(name):
    running, batch, group = (on_meta(name, CIFAR, bn) for bn in ("running", "batch", "group"))
    assert not list(batch.buffers())
    assert not list(group.buffers())
    shapes = [{k: p.shape for k, p in b.named_parameters()} for b in (running, batch, group)]
    assert shapes[0] == shapes[1] == shapes[2]


def test_resnet18_tv_has_torchvisions_names():
    expected = {"conv1.weight": (64, 3, 7, 7), "bn1.weight": (64,), "bn1.bias": (64,)}
    widths = [64, 64, 128, 256, 512]
    for stage in range(1, 5):
        c_in, c = widths[stage - 1], widths[stage]
        for block in range(2):
            at = f"layer{stage}.{block}"
            expected[f"{at}.conv1.weight"] = (c, c_in if block == 0 else c, 3, 3)
            expected[f"{at}.conv2.weight"] = (c, c, 3, 3)
            expected |= {f"{at}.bn{i}.{k}": (c,) for i in (1, 2) for k in ("weight", "bias")}
        if stage > 1:
            expected[f"layer{stage}.0.downsample.0.weight"] = (c, c_in, 1, 1)
            expected |= {f"layer{stage}.0.downsample.1.{k}": (c,) for k in ("weight", "bias")}
    b = on_meta("resnet18_tv", (3, 224, 224))
    assert {k: tuple(p.shape) for k, p in b.named_parameters()} == expected
    assert all(k.rpartition(".")[0] + ".weight" in expected for k, _ in b.named_buffers())


def test_bodies_can_be_copied_and_sent_to_another_process():
    b = body("resnet8", (1, 8, 8), seed_stream=stream(4)).eval()
    x = inputs(1, 8, 8)
    for twin in (copy.deepcopy(b), pickle.loads(pickle.dumps(b))):
        assert twin.dim == b.dim
        assert torch.equal(twin(x), b(x))


def test_an_unknown_model_is_answered_with_the_nearest_name():
    with pytest.raises(ModelError, match="'resnet_20' is unknown; did you mean 'resnet20'"):
        body("resnet_20", CIFAR, seed_stream=stream(0))


def test_an_unknown_bn_is_answered_with_the_allowed_values():
    with pytest.raises(ModelError, match=r"'instance'.*running, batch, group"):
        body("resnet8", CIFAR, bn="instance", seed_stream=stream(0))


@pytest.mark.parametrize("shape", [(13,), (28, 28), (3, 4, 32, 32)])
def test_an_image_model_refuses_what_is_no_image_and_points_to_mlp(shape):
    with pytest.raises(ModelError, match=r"'resnet8' needs images.*'mlp' for tabular data"):
        body("resnet8", shape, seed_stream=stream(0))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 8)])
def test_empty_shapes_are_refused_by_every_kind(shape):
    for name in ("mlp", "resnet8"):
        with pytest.raises(ModelError, match=f"'{name}' cannot take"):
            body(name, shape, seed_stream=stream(0))


@pytest.mark.parametrize("name", ["mcmahan_cnn", "moon_cnn"])
def test_a_pool_before_the_relu_is_the_papers_network_to_the_last_bit(name):
    ours = body(name, (3, 32, 32), bn="running", seed_stream=stream("order"))
    order = [key for key, _ in ours.named_children()]
    for i in ("1", "2"):
        a, b = order.index(f"pool{i}"), order.index(f"relu{i}")
        assert b == a + 1
        order[a], order[b] = order[b], order[a]
    parts = dict(ours.named_children())
    x = torch.randn(8, 3, 32, 32, generator=stream("images"))
    x[:, :, :16] = 0.5  # flat regions, where a pool meets ties
    results = []
    for layers in (list(parts), order):
        h = x
        for key in layers:
            h = parts[key](h)
        grads = torch.autograd.grad(h.square().sum(), list(ours.parameters()))
        results.append([h, *grads])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
