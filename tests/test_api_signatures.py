"""The signatures of headway.run and compare hold every setting and option."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields

import pytest

import headway as fl
from headway.base.errors import ConfigError
from headway.training.settings import Settings

FUNCTIONS = {"run": fl.run, "compare": fl.compare}
OTHERS = {"run": ["recipe", "out", "options", "unknown"], "compare": ["recipes", "seeds", "out", "options", "unknown"]}


def wanted(function: str) -> dict[str, object]:
    """Every setting and option with its default."""
    settings = {name: field.default for name, field in Settings.model_fields.items()}
    if function == "compare":
        del settings["seed"]  # it has seeds
    options = {f.name: None if f.default is MISSING else f.default for f in fields(fl.Options)}  # progress has none
    return settings | options


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_setting_and_option_is_a_parameter_with_its_default(function):
    parameters = inspect.signature(FUNCTIONS[function]).parameters
    shown = {name: p.default for name, p in parameters.items() if name not in OTHERS[function]}
    assert shown == wanted(function)
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in shown)
    assert all(p.annotation is not inspect.Parameter.empty for p in parameters.values())


def test_the_two_functions_agree_in_what_both_have():
    run, compare = (inspect.signature(f).parameters for f in FUNCTIONS.values())
    both = set(run) & set(compare)
    assert {name: str(run[name]) for name in both} == {name: str(compare[name]) for name in both}


def test_every_parameter_is_explained():
    explained = re.findall(r"^        (\w+): ", fl.run.__doc__.split("Returns:")[0], re.MULTILINE)
    assert set(explained) == set(inspect.signature(fl.run).parameters) - {"unknown"}
    assert len(explained) == len(set(explained))


@pytest.mark.parametrize("name", ["run", "compare", "recipe"])
def test_the_functions_say_what_they_take_give_and_raise(name):
    for part in ("Args:", "Returns:", "Raises:", ">>> "):
        assert part in getattr(fl, name).__doc__


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: fl.run("fedavg", roundz=3), "roundz=3: headway.run has no 'roundz'; did you mean 'rounds'?"),
        (lambda: fl.run("fedavg", worker="2"), "worker='2': headway.run has no 'worker'; did you mean 'workers'?"),
        (lambda: fl.compare(["fedavg"], seed=1), "seed=1: headway.compare has no 'seed'; did you mean 'seeds'?"),
    ],
)
def test_an_unknown_keyword_gets_the_nearest_name(call, said):
    with pytest.raises(ConfigError) as caught:
        call()
    assert str(caught.value) == said


def test_a_keyword_comes_before_the_object_that_holds_all_options():
    from headway.api import _options

    both = _options(fl.Options(workers=2, store="disk"), {"store": "memory"})
    assert (both.workers, both.store) == (2, "memory")
