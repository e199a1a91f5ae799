"""Task: who takes part, what clients hold, and what a recipe may change of it."""

from __future__ import annotations

import torch
from toy import OneWeight, skewed, task_of, two_clients

from headway.base.tree import Tree
from headway.core.reports import Reports
from headway.core.state import Report
from headway.methods import recipe as parse


def report(n: int) -> Report:
    return Report(0, n, 1, Tree(), Tree(), {})


def test_a_share_of_the_clients_takes_part_each_round_in_ascending_order() -> None:
    task = skewed(10, sampling=0.3, train_size=200, partition="iid")
    rounds = [task.sampling(t) for t in range(20)]
    assert all(len(ids) == 3 and ids == sorted(ids) for ids in rounds)
    assert set().union(*rounds) == set(range(10))
    assert rounds == [task.sampling(t) for t in range(20)]  # a function of the round
    assert rounds != [skewed(10, seed=1, sampling=0.3, train_size=200).sampling(t) for t in range(20)]


def test_at_least_one_takes_part_and_never_one_without_data() -> None:
    task = task_of([1.0, 2.0], [0, 1], [[0], [], [1], []], sampling=0.01)
    assert {k for t in range(20) for k in task.sampling(t)} == {0, 2}
    assert all(len(task.sampling(t)) == 1 for t in range(20))
    assert task.everyone() == [0, 2]


def test_reports_weigh_by_their_examples_or_alike() -> None:
    reports = Reports.of([report(1), report(3)])
    assert two_clients().weights(reports) == [0.25, 0.75]
    assert two_clients(aggregation="uniform").weights(reports) == [0.5, 0.5]


def test_a_client_gets_its_own_samples() -> None:
    task = two_clients()
    x, y = task.data[1]
    assert (x.flatten().tolist(), y.tolist()) == ([1.0, 2.0], [1, 1])
    assert [task.data.size(k) for k in range(len(task.data))] == [1, 2]


def test_pooled_data_are_all_samples_at_one_client() -> None:
    task = two_clients()
    pooled = task.for_recipe(parse("centralized"))
    assert len(pooled.data) == 1
    assert sorted(pooled.data[0][0].flatten().tolist()) == [1.0, 2.0, 2.0]
    assert task.for_recipe(parse("fedavg")) is task


def test_first_weights_do_not_depend_on_who_asks_and_may_be_changed() -> None:
    task = task_of([1.0], [0], [[0]], body=lambda: OneWeight(0.5))
    net = task.net(parse("fedavg"))
    with torch.no_grad():
        net.body.u.fill_(9.0)
    first = task.first_params(parse("fedavg"))
    assert float(first["body.u"]) == 0.5
    first["body.u"].fill_(9.0)
    assert task.net(parse("fedavg")).body.u.item() == 0.5


def test_a_working_net_is_back_in_train_mode_with_its_frozen_tensors() -> None:
    recipe, task = parse("fednh"), skewed(2, train_size=40)
    net = task.working_net(recipe).eval()
    first = task.net(recipe).frozen()["head.weight"]
    net.load(Tree({"head.weight": torch.zeros_like(first)}))  # as prototypes of a round would
    again = task.working_net(recipe)
    assert again is net
    assert again.training
    assert torch.equal(again.frozen()["head.weight"], first)
