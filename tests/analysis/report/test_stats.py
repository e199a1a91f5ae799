"""Significance by numbers that can be checked by hand."""

import math

import numpy as np
import pytest
from report_runs import write_run

from headway.analysis.report.gather import gather
from headway.analysis.report.stats import holm, paired_t, signed_rank, signed_rank_p, verdicts


def test_paired_t_by_hand():
    # differences 1, 2, 3: mean 2, std (ddof 1) 1, t = 2 / (1 / sqrt 3) = 3.4641 with 2 degrees of freedom.
    # For 2 degrees the two-sided p is 1 - t / sqrt(t^2 + 2) = 1 - sqrt(12 / 14) = 0.0742
    v = paired_t({0: 2.0, 1: 4.0, 2: 6.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    assert v.difference == pytest.approx(2.0)
    assert v.p == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-9)
    assert v.mark == "unclear"


def test_only_shared_seeds_are_paired():
    v = paired_t({0: 1.0, 1: 1.0, 5: 9.0}, {0: 0.0, 1: 0.0, 7: 9.0})
    assert (v.pairs, v.p, v.why, v.mark) == (2, None, "too few seeds", "untested")


def test_no_difference_is_p_one_and_a_constant_one_is_not_tested():
    same = {0: 0.5, 1: 0.6, 2: 0.7}
    assert paired_t(same, same).p == 1.0
    v = paired_t({k: x + 0.25 for k, x in {0: 0.5, 1: 0.5, 2: 0.5}.items()}, {0: 0.5, 1: 0.5, 2: 0.5})
    assert (v.p, v.why) == (None, "the same difference under every seed")


def test_signed_rank_by_hand():
    # six differences of one sign: both extremes of 2^6 equally likely sign patterns, p = 2 / 64
    v = signed_rank({k: 0.01 * (k + 1) for k in range(6)}, dict.fromkeys(range(6), 0.0))
    assert v.p == pytest.approx(2 / 64)
    assert v.mark == "better"


def test_signed_rank_with_ties_by_hand():
    # sizes 1, 1, 2 have mean ranks 1.5, 1.5, 3; all positive is the highest of 8 sums, all negative the least: 2/8.
    # With the 2 negative the positive ranks sum to 3, and so does the 2 alone: every pattern is as far out, p = 1
    assert signed_rank_p([1.0, 1.0, 2.0]) == 2 / 8
    assert signed_rank_p([1.0, 1.0, -2.0]) == 1.0


@pytest.mark.parametrize("n", [7, 30, 50, 51, 200])
def test_signed_rank_agrees_with_scipy(n):
    from scipy import stats

    d = np.random.RandomState(n).normal(0.2, 1, n)  # without ties scipy counts exactly up to 50 as well
    method = "exact" if n <= 50 else "approx"
    assert signed_rank_p(d.tolist()) == pytest.approx(stats.wilcoxon(d, method=method).pvalue, rel=1e-9)
    tied = np.round(np.random.RandomState(n).normal(0.2, 1, 200), 1)
    tied = tied[tied != 0]
    assert signed_rank_p(tied.tolist()) == pytest.approx(stats.wilcoxon(tied, method="approx").pvalue, rel=1e-9)


def test_signed_rank_needs_six_clients_that_differ():
    ours = dict.fromkeys(range(50), 0.5) | {k: 0.6 + k / 100 for k in range(5)}
    v = signed_rank(ours, dict.fromkeys(range(50), 0.5))
    assert (v.p, v.why, v.pairs) == (None, "too few clients differ", 50)
    assert signed_rank(dict.fromkeys(range(9), 0.5), dict.fromkeys(range(9), 0.5)).p == 1.0


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.04: times 3, 2, 1 -> 0.03, 0.04, 0.04; an untested one does not count
    assert holm([0.04, None, 0.01, 0.02]) == [pytest.approx(0.04), None, pytest.approx(0.03), pytest.approx(0.04)]
    assert holm([0.6, 0.7]) == [1.0, 1.0]  # 1.2 is cut to 1, and what follows is no smaller


def runs(tmp_path, **more):
    for seed in range(3):
        write_run(tmp_path / f"fedavg-{seed}", "fedavg", seed, accs=(0.5,), personal=(0.5,) * 3)
        write_run(tmp_path / f"moon-{seed}", "moon", seed, accs=(0.6 + seed / 1000,), personal=(0.6, 0.7, 0.8), **more)
    return gather([tmp_path])


def test_verdicts_of_a_comparison(tmp_path):
    g = runs(tmp_path)
    moon = next(x for x in g.groups if x.label == "moon")
    v = verdicts(g)
    # differences 0.1, 0.101, 0.102: t = 0.101 / (0.001 / sqrt 3) = 175, p far below 0.05
    assert v["global"][moon.key].mark == "better"
    assert v["personal"][moon.key].mark == "better"  # nine clients, all better: p = 2 / 2^9 without ties
    assert v["personal"][moon.key].pairs == 9
    assert g.base.key not in v["global"]


def test_an_unfinished_recipe_is_not_tested(tmp_path):
    g = runs(tmp_path, finished=False)
    moon = next(x for x in g.groups if x.label == "moon")
    assert [verdicts(g)[f][moon.key].why for f in ("global", "personal")] == ["unfinished", "unfinished"]


def test_clients_that_hold_other_data_are_not_paired(tmp_path):
    import json

    runs(tmp_path)
    for seed in range(3):
        path = tmp_path / f"moon-{seed}" / "config.json"
        config = json.loads(path.read_text())
        config["identity"]["partition_hash"] = "other"
        path.write_text(json.dumps(config))
    g = gather([tmp_path])
    moon = next(x for x in g.groups if x.label == "moon")
    assert verdicts(g)["personal"][moon.key].why == "clients hold other data"
