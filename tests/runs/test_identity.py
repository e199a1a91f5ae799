"""Whether two runs are the same, and how the difference is described: once, for folders, configs and checkpoints."""

from __future__ import annotations

import json

import pytest
from run_files import DIGITS, net_of_width

import headway
from headway.base.errors import CheckpointError, HeadwayError
from headway.base.wording import for_commands
from headway.methods import recipe
from headway.runs.contents import config_of
from headway.runs.identity import check_same, described, differing, identity_of, state_of
from headway.runs.options import Options
from headway.training.settings import settings
from headway.training.task import build

SMALL = {"clients": 2, "rounds": 1, "train_size": 40, "test_size": 20, "model": "mlp_small"}


@pytest.fixture(scope="module")
def here():
    return identity_of(recipe("fedavg"), build(settings(SMALL)))


@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        ({}, []),
        ({"lr": 7.0}, ["lr"]),
        ({"recipe": "scaffold", "rounds": 9}, ["recipe", "rounds"]),
        ({"data_hash": "x"}, ["data_hash"]),
        ({"data_hash": "x", "partition_hash": "x"}, ["data_hash"]),  # other data are shared out otherwise
        ({"seed": 5, "partition_hash": "x"}, ["seed"]),
        ({"data": "x", "data_hash": "x", "partition_hash": "x"}, ["data"]),
        ({"weights_hash": "x", "body_hash": "x"}, ["weights_hash"]),
    ],
)
def test_fields_that_differ_without_the_hashes_that_follow(here, changed, fields) -> None:
    assert differing(here | changed, here) == fields


def test_a_field_that_an_older_version_did_not_save(here) -> None:
    older = {key: value for key, value in here.items() if key not in ("clip_norm", "partition_hash")}
    assert differing(older, here) == []  # the setting had its default, and the hash is unknown
    assert differing(older, here | {"clip_norm": 3.0}) == ["clip_norm"]


def test_an_identity_is_the_same_after_json(here) -> None:
    assert differing(json.loads(json.dumps(here)), here) == []


def test_both_values_of_a_setting_and_the_name_behind_a_hash(here) -> None:
    there = here | {"lr": 7.0, "data_hash": "x"}
    assert described(["lr", "data_hash"], there, here) == "lr: 7.0 there, 0.05 here, data digits is not the same"
    assert described(["lr"] * 5, there, here).endswith("here and 2 more")


def test_what_is_wrong_comes_first_and_the_fix_last(here) -> None:
    with pytest.raises(CheckpointError, match=r"^this run \(lr: 7\.0 there, 0\.05 here\); put lr back$"):
        check_same(here | {"lr": 7.0}, here, "this run", lambda fields: f"put {fields[0]} back")


def test_the_state_of_a_folder(here, tmp_path) -> None:
    assert state_of(tmp_path, here, overwrite=False) == "empty"
    (tmp_path / "config.json").write_text(json.dumps({"identity": here}))
    assert state_of(tmp_path, here, overwrite=False) == "unfinished"
    (tmp_path / "summary.json").write_text("{}")
    assert state_of(tmp_path, here, overwrite=False) == "unfinished"  # its model is missing
    assert state_of(tmp_path, here, overwrite=True) == "empty"


def test_advice_fits_whoever_asks(here, tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"identity": here | {"rounds": 9}}))
    with pytest.raises(CheckpointError, match=r"\); choose another out, or overwrite=True to replace it$"):
        state_of(tmp_path, here, overwrite=False)
    with for_commands(), pytest.raises(CheckpointError, match=r"\); choose another --out, or --overwrite to replace"):
        state_of(tmp_path, here, overwrite=False)


def test_a_config_holds_the_identity_it_is_compared_by(here) -> None:
    task = build(settings(SMALL))
    config = config_of(recipe("fedavg"), task, identity_of(recipe("fedavg"), task), Options(), [])
    assert differing(json.loads(json.dumps(config))["identity"], here) == []


def test_another_model_under_the_same_name_is_another_run(tmp_path):
    headway.run("fedavg", model=net_of_width(8), out=tmp_path / "r", **DIGITS)
    headway.run("fedavg", model=net_of_width(8), out=tmp_path / "r", **DIGITS)
    with pytest.raises(HeadwayError, match="is not the same"):
        headway.run("fedavg", model=net_of_width(64), out=tmp_path / "r", **DIGITS)


def test_another_runs_difference_is_told_from_both_sides(tmp_path):
    headway.run("fedavg", out=tmp_path / "r", **DIGITS)
    with pytest.raises(HeadwayError, match=r"rounds: 2 there, 3 here"):
        headway.run("fedavg", out=tmp_path / "r", **(DIGITS | {"rounds": 3}))
