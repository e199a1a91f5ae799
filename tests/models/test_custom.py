"""The user's own networks: where they are cut, how they are found and built, and what is refused."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from headway.base.errors import ModelError
from headway.models.custom import construct, from_spec, split

X = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


class Odd(nn.Module):
    """Registers its classifier first, has an attribute called dim, a dropout and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.dim = "mine"
        self.out = nn.Linear(16, 5)
        self.norm = nn.BatchNorm2d(1)
        self.hidden = nn.Linear(64, 16)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.out(self.drop(self.hidden(self.norm(x).flatten(1)).relu()))


class After(nn.Module):
    """A good network, and then something done to its logits."""

    def __init__(self, then) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
        self.then = then

    def forward(self, x):
        return self.then(self.net(x))


def test_the_last_linear_is_the_one_that_runs_last_not_the_one_registered_last():
    whole = Odd().eval()
    body, last = split(whole, X)
    assert body.dim == 16
    assert (last.in_features, last.out_features) == (16, 5)
    assert torch.equal(last.weight, whole.out.weight)
    body.eval()
    assert body(X).shape == (3, 16)
    assert torch.equal(last(body(X)), whole(X))  # body and layer together are the network


def test_the_users_module_its_modes_and_torchs_random_numbers_are_left_alone():
    whole = Odd().train()
    whole.norm.eval()  # frozen by its owner
    state = {k: v.clone() for k, v in whole.state_dict().items()}
    numbers = torch.get_rng_state()
    body, last = split(whole, X)
    assert whole.training
    assert body.inner.drop.training
    assert not body.inner.norm.training
    assert all(torch.equal(v, state[k]) for k, v in whole.state_dict().items())
    assert torch.equal(torch.get_rng_state(), numbers)
    assert last is not whole.out
    assert not any(m._forward_hooks for m in body.modules())


def test_the_body_has_no_parameter_of_the_classifier():
    body, last = split(Odd(), X)
    assert {p.data_ptr() for p in body.parameters()}.isdisjoint({p.data_ptr() for p in last.parameters()})
    assert sum(p.numel() for p in body.parameters()) == 64 * 16 + 16 + 2


def test_a_bare_linear_layer_has_an_empty_body():
    body, last = split(nn.Linear(7, 3), torch.randn(2, 7))
    assert body.dim == 7
    assert not list(body.parameters())
    assert last.out_features == 3


def test_a_classifier_known_under_two_names_is_taken_out_under_both():
    class Twice(Odd):
        def forward(self, x):
            return self.alias(self.hidden(x.flatten(1)))

    whole = Twice()
    whole.alias = whole.out
    body, _ = split(whole, X)
    assert body(X).shape == (3, 16)
    assert not [k for k, _ in body.named_parameters() if "out" in k or "alias" in k]


def test_lazy_layers_are_settled_by_the_sample():
    body, last = split(nn.Sequential(nn.Flatten(), nn.LazyLinear(12), nn.ReLU(), nn.LazyLinear(4)), X)
    assert body.dim == last.in_features == 12


@pytest.mark.parametrize(
    "then",
    [
        nn.Softmax(dim=1),
        nn.Dropout(0.5),  # gives back its very input in eval mode
        nn.ReLU(inplace=True),
        lambda z: z.relu_(),
        lambda z: z.log_softmax(1),
        lambda z: z / 2,
        lambda z: z.view(-1, 5, 1),
    ],
)
def test_whatever_follows_the_last_linear_is_refused_with_return_the_logits(then):
    with pytest.raises(ModelError, match=r"follows the last linear layer 'net\.1' of model After; return the logits"):
        split(After(then), X)


def test_an_identity_after_the_last_linear_is_nothing():
    body, _ = split(After(nn.Identity()), X)
    assert body.dim == 64


def test_a_network_without_a_linear_layer_is_refused():
    with pytest.raises(ModelError, match="runs no linear layer"):
        split(nn.Sequential(nn.Conv2d(1, 5, 8), nn.Flatten()), X)


def test_features_that_are_not_one_row_an_input_are_refused_with_their_shape():
    with pytest.raises(ModelError, match=r"features of shape \[3, 8, 8\].*pool or flatten"):
        split(nn.Sequential(nn.Flatten(1, 2), nn.Linear(8, 5)), X)


def test_a_network_that_returns_more_than_logits_is_refused():
    with pytest.raises(ModelError, match="returns the type tuple"):
        split(After(lambda z: (z, z)), X)


def test_a_classifier_that_runs_twice_is_refused():
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(64, 64)

        def forward(self, x):
            return self.fc(self.fc(x.flatten(1)))

    with pytest.raises(ModelError, match="'fc' 2 times"):
        split(Loop(), X)


def test_a_network_that_fails_on_the_input_says_how():
    with pytest.raises(ModelError, match=r"Sequential fails on an input of shape \[3, 1, 8, 8\].*RuntimeError"):
        split(nn.Sequential(nn.Linear(9, 2)), X)


SOURCE = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes, in_channels):
        super().__init__(nn.Flatten(), nn.LazyLinear(num_classes))
        self.seen = (num_classes, in_channels)

built = Net(2, 1)
number = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_class_is_found_in_a_file_and_built_with_what_it_asks_for(file):
    net = construct(from_spec(f"{file}:Net"), classes=4, shape=(1, 8, 8))
    assert net.seen == (4, 1)


def test_a_class_is_found_in_a_package():
    assert from_spec("torch.nn:Linear") is nn.Linear


def test_two_files_of_one_name_do_not_stand_in_for_each_other(tmp_path, file):
    other = tmp_path / "sub" / "mine.py"
    other.parent.mkdir()
    other.write_text("def Net(): return 'other'")
    assert from_spec(f"{file}:Net") is not from_spec(f"{other}:Net")
    assert from_spec(f"{other}:Net")() == "other"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nothing.py:Net", "'nothing.py' does not exist"),
        ("no_such_package.nets:Net", "No module named 'no_such_package'.*path/to/file.py:Name"),
        ("torch.nn:Linaer", "has no 'Linaer'"),
        ("torch.nn", "is not a spec"),
        ("net.py", "model=net.py: the name of a network is missing; write net.py:Name"),
        ("net.py:", "model=net.py:: the name of a network is missing; write net.py:Name"),
        (":Net", "is not a spec"),
        ("torch.nn:", "is not a spec"),
        ("math:pi", "of type float"),
    ],
)
def test_a_spec_that_leads_nowhere_says_what_is_missing(spec, says):
    with pytest.raises(ModelError, match=says):
        from_spec(spec)


@pytest.mark.parametrize(
    ("name", "says"),
    [("Network", "has no 'Network'; known: Net$"), ("built", "of type Net"), ("number", "of type int")],
)
def test_a_name_in_a_file_that_is_no_factory_is_refused(file, name, says):
    with pytest.raises(ModelError, match=says):
        from_spec(f"{file}:{name}")


MANY = """
from functools import partial
from dataclasses import dataclass
from torch import nn
from torch.nn import Linear

SIZE = 3
make = partial(nn.Linear, 64, 10)
_hidden = lambda: None

@dataclass
class Config:
    width: int = 3

class Mine(nn.Sequential):
    pass

def build(classes):
    return Mine()
"""


@pytest.mark.parametrize("spec", ["many.py:Missing", "many.py"])
def test_only_the_networks_and_functions_of_a_file_are_named(tmp_path, monkeypatch, spec):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "many.py").write_text(MANY)
    with pytest.raises(ModelError) as refused:
        from_spec(spec)
    fix = "known: Mine, build" if ":" in spec else "is missing; write many.py:Mine"
    assert str(refused.value).endswith(fix)


@pytest.mark.parametrize("text", ["import no_such_thing", "def broken(:", "1 / 0", "raise SystemExit(3)"])
def test_a_file_that_cannot_be_imported_says_why_and_leaves_no_trace(tmp_path, text):
    bad = tmp_path / "bad.py"
    bad.write_text(text)
    with pytest.raises(ModelError, match=r"cannot be imported: (ModuleNotFound|Syntax|ZeroDivision|SystemExit)"):
        from_spec(f"{bad}:Net")
    assert not [name for name in sys.modules if name.startswith("headway_user_bad")]


def record(**given):
    net = nn.Linear(1, 1)
    net.given = given
    return net


@pytest.mark.parametrize(
    ("factory", "given"),
    [
        (lambda: record(), {}),
        (lambda classes: record(classes=classes), {"classes": 4}),
        (lambda shape, *, classes: record(shape=shape, classes=classes), {"shape": (3, 8, 8), "classes": 4}),
        (lambda num_classes, in_channels=1, width=9: record(n=num_classes, c=in_channels), {"n": 4, "c": 3}),
        (lambda **kw: record(**kw), {"num_classes": 4}),  # as torchvision's models take it
        (lambda classes, **kw: record(classes=classes, **kw), {"classes": 4}),
        (lambda width=3, /: record(width=width), {"width": 3}),
    ],
)
def test_a_factory_is_given_only_what_its_signature_accepts(factory, given):
    assert construct(factory, 4, (3, 8, 8)).given == given


def test_a_factory_that_needs_more_is_refused_with_what_a_model_may_take():
    with pytest.raises(ModelError, match=r"'width'.*classes, num_classes, shape, in_channels"):
        construct(lambda width: record(), 4, (3, 8, 8))


def test_a_factory_that_returns_no_module_is_refused():
    def make(classes):
        return None

    with pytest.raises(ModelError, match=r"make\(classes=4\) returns the type NoneType"):
        construct(make, 4, (3, 8, 8))
