"""Settings: defaults that run, ranges that hold, and sentences that say what is allowed."""

import pytest
from pydantic import ValidationError

from headway.base.errors import ConfigError
from headway.training.settings import Settings, parse_decay, settings


def sentence(**given):
    with pytest.raises(ConfigError) as caught:
        settings(given)
    return str(caught.value)


def test_defaults_are_a_whole_task():
    s = settings({})
    assert (s.data, s.partition, s.clients, s.rounds, s.seed) == ("digits", "dir(0.1)", 20, 20, 0)


def test_partitions_that_know_their_clients_are_not_given_twenty(tmp_path):
    (tmp_path / "partition.json").touch()
    for partition in ("natural", " Natural() ", "p/partition.json", str(tmp_path)):
        assert settings({"partition": partition}).clients is None
        assert settings({"partition": partition, "clients": "20"}).clients == 20
    for partition in ("iid", "dir(0.5)", "nosuch"):
        assert settings({"partition": partition}).clients == 20
    assert settings({"clients": None}).clients == Settings().clients == 20


def test_every_setting_says_what_it_is():
    assert all(field.description for field in Settings.model_fields.values())


def test_text_is_read_as_the_type_of_the_field():
    s = settings({"lr": "0.1", "clients": "7", "merge_test": "true", "sampling": "0.5", "clip_norm": "3"})
    assert (s.lr, s.clients, s.merge_test, s.sampling, s.clip_norm) == (0.1, 7, True, 0.5, 3.0)


def test_settings_do_not_change_once_made():
    with pytest.raises(ValidationError):
        settings({}).lr = 0.2


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"lr": "nan"}, "lr=nan: lr must be a finite number above 0"),
        ({"lr": "inf"}, "lr=inf: lr must be a finite number above 0"),
        ({"lr": 0}, "lr=0: lr must be a finite number above 0"),
        ({"lr": "fast"}, "lr=fast: lr must be a finite number above 0"),
        ({"sampling": 0}, "sampling=0: sampling must be a finite number above 0 and at most 1"),
        ({"sampling": 1.5}, "sampling=1.5: sampling must be a finite number above 0 and at most 1"),
        ({"momentum": 1}, "momentum=1: momentum must be a finite number of at least 0 and below 1"),
        ({"weight_decay": -1}, "weight_decay=-1: weight_decay must be a finite number of at least 0"),
        ({"clip_norm": 0}, "clip_norm=0: clip_norm must be a finite number above 0"),
        ({"rounds": 0}, "rounds=0: rounds must be a whole number from 1 to 1,000,000,000"),
        ({"clients": "2.5"}, "clients=2.5: clients must be a whole number from 1 to 1,000,000,000"),
        ({"train_size": 0}, "train_size=0: train_size must be a whole number from 1 to 1,000,000,000"),
        ({"batch_size": 10**20}, f"batch_size={10**20}: batch_size must be a whole number from 1 to 1,000,000,000"),
        ({"seed": -1}, "seed=-1: seed must be a whole number of at least 0"),
        ({"merge_test": "maybe"}, "merge_test=maybe: merge_test must be true or false"),
        ({"bn": "none"}, "bn=none: bn must be one of auto, running, batch, group"),
        ({"aggregation": "median"}, "aggregation=median: aggregation must be one of weighted, uniform"),
        ({"data": None}, "data=None: data must be text"),
        ({"lr_decay": 2}, "lr_decay=2: the factor must be above 0 and at most 1, such as 0.99"),
        ({"lr_decay": "0.1@"}, "lr_decay=0.1@: write a factor per round such as 0.99, or factor@rounds such as"),
        ({"lr_decay": "0.1@5,3"}, "lr_decay=0.1@5,3: the rounds after @ must grow, each given once; write 0.1@3,5"),
        ({"lr_decay": "0.1@5,5"}, "lr_decay=0.1@5,5: the rounds after @ must grow, each given once; write 0.1@5"),
        ({"lr_decay": "0.1@-1"}, "lr_decay=0.1@-1: the rounds after @ must be 1 or more"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(given, wanted):
    assert sentence(**given).startswith(wanted)


def test_several_mistakes_are_shown_together():
    said = sentence(lr="nan", rounds=0)
    assert "lr=nan" in said
    assert "rounds=0" in said


def test_an_unknown_setting_gets_the_nearest_name():
    assert sentence(momentun=0.5) == "momentun=0.5: there is no setting 'momentun'; did you mean 'momentum'?"


def test_an_unknown_setting_far_from_all_gets_the_list():
    said = sentence(zzzzz=1)
    assert "known: data, " in said
    assert "personal_clients" in said


def test_decay_by_factor_is_a_power_of_the_round():
    s = settings({"lr": 0.5, "lr_decay": 0.5})  # 0.5, 0.25, 0.125
    assert [s.lr_at(t) for t in range(3)] == [0.5, 0.25, 0.125]


def test_decay_at_rounds_is_a_power_of_the_milestones_passed():
    s = settings({"lr": 1.0, "lr_decay": "0.1@2,4"})
    assert [s.lr_at(t) for t in (0, 1, 2, 3, 4, 9)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_decay_is_read_from_text_and_from_numbers_alike():
    assert parse_decay("0.99") == (0.99, None)
    assert parse_decay("0.1@160,240") == (0.1, (160, 240))
    assert settings({"lr_decay": 1}) == settings({"lr_decay": "1"})
