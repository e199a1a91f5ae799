"""The reports of a round: one by one or in bundles, always in the order of the clients, with the same sums."""

from __future__ import annotations

import copy

import pytest
import torch

from headway.base.tree import Tree
from headway.core import reports as reports_module
from headway.core.reports import Bundle, Reports, Rows
from headway.core.state import Report
from headway.methods import Scaffold

PLACES = [("a", 0, (2,)), ("b", 2, (1, 2))]


def single(k: int, a: float, n: int = 1, **sent) -> Report:
    w = Tree({"a": torch.tensor([a, a + 1]), "b": torch.tensor([[a, -a]])})
    return Report(k, n, 1, w, Tree(), sent, loss=float(k))


def bundle(*clients: int) -> Bundle:
    """Client k has the numbers k, k + 1, k, -k, k samples, 2 k steps and the loss k."""
    matrix = torch.tensor([[k, k + 1.0, k, -k] for k in clients])
    return Bundle(
        list(clients), list(clients), [2 * k for k in clients], [float(k) for k in clients], [Rows(matrix, PLACES)]
    )


def test_reports_stand_in_the_order_of_the_clients_however_they_arrive():
    for parts in ([bundle(5, 1), single(3, 3.0)], [single(3, 3.0), bundle(5, 1)]):
        found = Reports.of(parts)
        assert [r.client for r in found] == [1, 3, 5] == [found[0].client, found[1].client, found[-1].client]
        assert found.numbers("loss") == [1.0, 3.0, 5.0]
        assert [r.client for r in found[1:]] == [3, 5]
        assert len(found) == 3


def test_a_report_of_a_bundle_is_a_report():
    report = Reports.of([bundle(4, 2)])[0]
    assert (report.client, report.n, report.steps, report.loss, report.sent) == (2, 2, 4, 2.0, {})
    assert {k: v.tolist() for k, v in report.w.items()} == {"a": [2.0, 3.0], "b": [[2.0, -2.0]]}
    assert Reports.of([bundle(4, 2)]).nbytes() == 2 * 4 * 4 == sum(r.nbytes() for r in Reports.of([bundle(4, 2)]))


@pytest.mark.parametrize("long_row", [1, 100])
def test_the_mean_by_hand(monkeypatch, long_row):
    """p = (1/2, 1/4, 1/4) of clients 1, 2, 6: a = 1/2 + 2/4 + 6/4 = 2.5, then 1 + 3/4 + 7/4 = 3.5."""
    monkeypatch.setattr(reports_module, "LONG_ROW", long_row)
    for parts in ([bundle(6, 1), bundle(2)], [bundle(1, 2, 6)], [single(1, 1.0), single(2, 2.0), single(6, 6.0)],
                  [bundle(2, 6), single(1, 1.0)]):  # fmt: skip
        mean = Reports.of(parts).mean([0.5, 0.25, 0.25])
        assert {k: v.tolist() for k, v in mean.items()} == {"a": [2.5, 3.5], "b": [[2.5, -2.5]]}


def test_the_mean_shares_no_memory_with_the_bundle():
    parts = [bundle(1)]
    mean = Reports.of(parts).mean([1.0])
    parts[0].rows[0].matrix.zero_()
    assert mean["a"].tolist() == [1.0, 2.0]


def test_a_piece_sees_its_own_messages():
    found = Reports.of([single(2, 1.0, scaffold={"dc": 7}), bundle(1)]).of_piece(Scaffold())
    assert [r.sent for r in found] == [{}, {"dc": 7}]


def test_statistics_are_averaged_where_there_are_some():
    with_stats = [Report(k, 1, 1, Tree(), Tree({"m": torch.tensor([float(k)])}), {}) for k in (3, 1)]
    assert Reports.of(with_stats).mean_stats([0.25, 0.75])["m"].tolist() == [2.5]  # 1 / 4 + 3 x 3 / 4
    assert Reports.of([bundle(1), bundle(2)]).mean_stats([0.5, 0.5]) == {}


def test_a_bundle_that_was_sent_is_the_same():
    sent = copy.deepcopy(bundle(4, 2))
    places = [[name, at, list(shape)] for name, at, shape in PLACES]
    fields = {"clients": sent.clients, "n": sent.n, "steps": sent.steps, "loss": sent.loss}
    fields["rows"] = [{"matrix": sent.rows[0].matrix, "places": places}]
    again = Bundle.received(fields)
    assert again.rows[0].places == PLACES
    assert [r.w["b"].tolist() for r in Reports.of([again])] == [[[2.0, -2.0]], [[4.0, -4.0]]]
