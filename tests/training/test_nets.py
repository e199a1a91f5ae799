"""Nets stand beside a task, which is a value: they are built once, shared where only data differ, and go with it."""

from __future__ import annotations

import gc
import weakref
from dataclasses import fields

from toy import skewed

from headway.methods import recipe as parse
from headway.models.net import Net
from headway.training.nets import kept, share_nets


def test_a_task_holds_no_net() -> None:
    task = skewed(3, train_size=90)
    task.first_params(parse("fedavg"))
    assert not any(isinstance(getattr(task, f.name), Net | dict) for f in fields(task))


def test_the_working_net_is_built_once_and_nets_are_always_new() -> None:
    task, recipe = skewed(3, train_size=90), parse("fedavg")
    assert task.working_net(recipe) is task.working_net(recipe)
    assert task.net(recipe) is not task.net(recipe)


def test_a_task_with_other_data_uses_the_same_nets_and_another_layout_does_not() -> None:
    task, recipe = skewed(3, train_size=90), parse("fedavg")
    net = task.working_net(recipe)
    assert task.with_data(task.tests, task.tests).working_net(recipe) is net
    assert task.in_layout("channels_last").working_net(recipe) is not net


def test_nets_go_with_the_last_task_that_uses_them() -> None:
    task, recipe = skewed(3, train_size=90), parse("fedavg")
    net = weakref.ref(task.working_net(recipe))
    other = task.with_data(task.data, task.tests)
    del task
    gc.collect()
    assert net() is not None
    del other
    gc.collect()
    assert net() is None


def test_sharing_before_the_first_net_works_too() -> None:
    class Owner:
        pass

    one = Owner()
    other = share_nets(one, Owner())
    net = skewed(3, train_size=90).net(parse("fedavg"))
    assert kept(other, "k", lambda: net) is net
    assert kept(one, "k", lambda: None) is net  # type: ignore[arg-type, return-value]
