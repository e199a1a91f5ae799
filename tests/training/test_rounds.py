"""The loop of rounds: what the server makes of the reports, and what it starts a calibration from."""

from __future__ import annotations

import pytest
import torch
from toy import assert_same, normed, one_round, several, two_clients

from headway.base.tree import mean
from headway.methods import recipe as parse
from headway.training import rounds


def test_mean_of_personal_is_the_plain_mean() -> None:
    recipe, task = parse("fedper"), two_clients(start=1.0)
    server, engine = several(recipe, task, 1)
    heads = [engine.store.get(k).personal["head.weight"] for k in (0, 1)]
    mean = rounds.with_mean_of_personal(server, engine.store)
    assert mean.w["head.weight"].flatten().tolist() == pytest.approx(((heads[0] + heads[1]) / 2).flatten().tolist())
    assert_same(mean.w["body.u"], server.w["body.u"])


# ---- running statistics


@pytest.mark.parametrize("base", ["fedexp", "scaffold(server_lr=3)", "fedavgm(server_lr=3)", "fedadam", "feddyn"])
def test_server_optimisers_do_not_extrapolate_running_statistics(base: str) -> None:
    server, reports, _ = one_round(base, normed())
    assert_same(server.stats, mean([r.stats for r in reports], [0.4, 0.6]))
    assert float(server.stats["body.bn.running_var"].min()) > 0


@pytest.mark.parametrize("base", ["fedavg", "fedexp", "fednova", "scaffold", "fedyogi", "feddyn", "perfedavg"])
def test_running_statistics_are_averaged_and_not_left_at_the_start_or_at_one_client(base: str) -> None:
    server, reports, _ = one_round(base, normed())
    first = normed().first_stats(parse("fedavg"))
    for name, v in server.stats.items():
        assert not torch.equal(v, first[name])
        assert not torch.equal(v, reports[0].stats[name])
        assert not torch.equal(v, reports[1].stats[name])
