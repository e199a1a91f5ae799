"""From a printed table to recipes and settings: METHODS' schedules, cell by cell."""

import pytest

from headway.data import DATASETS
from headway.errors import ConfigError
from headway.methods import recipe
from headway.models import MODELS
from headway.reproduce import plan
from headway.reproduce.protocols import recipe_for


def cell(table, words, scale="full", **changes):
    found = plan.chosen(plan.published(table), words)
    assert len(found) == 1, [r.method for r in found]
    return plan.cell_of(found[0], scale, changes)


@pytest.mark.parametrize("name", plan.tables())
def test_every_row_with_a_name_has_a_recipe_and_settings_at_both_scales(name):
    rows = plan.published(name)
    for scale in plan.SCALES:
        for made in plan.cells(rows, scale, {}):
            parsed = recipe(recipe_for(made.row, made.settings.rounds))
            assert {p.name for p in recipe(made.training).pieces} <= {p.name for p in parsed.pieces}
            assert made.settings.model in MODELS
            assert made.settings.data in DATASETS
            assert made.settings.data.replace("-", "") == made.row.dataset


def test_the_published_setting_of_fedetf_at_full_scale():
    s = cell("fedetf/table1", "cifar10,dir(0.05),fedavg,general_acc").settings
    assert (s.model, s.clients, s.sampling, s.epochs, s.rounds) == ("resnet20", 20, 1.0, 3, 200)
    assert (s.batch_size, s.lr, s.lr_decay, s.momentum, s.weight_decay) == (128, 0.04, "0.99", 0.9, 5e-4)
    assert (s.normalise, s.local_test, s.partition) == ("half", "0.3", "dir(0.05)")


def test_the_published_setting_of_fedfn_has_the_tables_own_rates_and_steps_at_half_and_three_quarters():
    plain, normed = (cell("fedfn/table2", f"cifar10,shard(2),{m}").settings for m in ("fedavg", "fedavg+fn"))
    assert (plain.lr, normed.lr) == (0.01, 0.03)
    assert plain.lr_decay == "0.1@160,240"
    assert (plain.clients, plain.sampling, plain.epochs, plain.batch_size) == (100, 0.1, 15, 50)


def test_the_published_settings_of_the_other_three():
    tc = cell("fedtc/table2", "cifar10,dir(0.1),fedtc").settings
    assert (tc.merge_test, tc.local_test, tc.lr_decay, tc.rounds, tc.weight_decay) == (True, "0.25", "0.9", 100, 1e-5)
    assert tc.partition == "dir(0.1,variant=guarded,min_size=40)"
    etf = cell("fedavg-etf-gmv/table4", "classes(2),epochs=5,fedavg+etf+gmv")
    assert (etf.settings.model, etf.settings.lr, etf.settings.rounds) == ("vgg11_nofc", 0.03, 1000)
    assert "gmv(alpha=0.5,warmup=900)" in recipe_for(etf.row, 1000)
    assert cell("ccvr/table2", "cifar10,dir(0.1),moon").training == "fedavg+moon(mu=5.0)"


def test_cpu_scale_keeps_data_partition_and_method_and_cuts_model_rounds_and_samples():
    full, cpu = (cell("fedetf/table1", "cifar10,dir(0.05),fedetf,general_acc", scale) for scale in ("full", "cpu"))
    assert full.training == cpu.training
    cut = {"model", "rounds", "train_size", "test_size"}
    same = set(type(full.settings).model_fields) - cut
    assert all(getattr(full.settings, f) == getattr(cpu.settings, f) for f in same)
    assert cpu.settings.rounds < full.settings.rounds


@pytest.mark.parametrize(
    ("table", "rows", "steps"),
    [("fedfn/table2", "shard(2),fedavg", 150), ("fedtc/table2", "cifar10,dir(0.1),fedper", 352)],
)
def test_where_local_steps_matter_no_sample_is_cut(table, rows, steps):
    """FedFN: 500 samples a client, 15 epochs, batches of 50; FedTC: 6,000, less a quarter, 5 epochs, 64."""
    full, cpu = (cell(table, rows, scale).settings for scale in ("full", "cpu"))
    held_out = 0.25 if cpu.merge_test else 0
    samples = (1 - held_out) * (cpu.train_size + cpu.test_size * cpu.merge_test) / cpu.clients
    assert round(samples * cpu.epochs / cpu.batch_size) == steps
    assert (cpu.clients, cpu.epochs, cpu.batch_size, cpu.lr) == (full.clients, full.epochs, full.batch_size, full.lr)


def test_a_shorter_run_starts_the_memory_after_the_same_share_of_rounds():
    row = plan.chosen(plan.published("fedavg-etf-gmv/table4"), "classes(2),epochs=2,fedavg+gmv")[0]
    assert recipe_for(row, 200) == "fedavg+gmv(alpha=1,warmup=180)"  # 900 of 1000


def test_what_acts_after_the_rounds_shares_one_training():
    plain, calibrated, oracle = (
        cell("ccvr/table2", f"cifar10,dir(0.1),{m}") for m in ("fedavg", "fedavg+ccvr", "fedavg+oracle")
    )
    assert plain.training == calibrated.training == oracle.training == "fedavg"
    assert (calibrated.calibration, oracle.calibration) == ("ccvr(per_class=2000)", "oracle")
    tuned = cell("fedetf/table1", "cifar10,dir(0.05),fedetf,personal_acc")
    assert tuned.personalisation == "algorithm2"
    assert "algorithm2" not in tuned.training
    assert cell("fedetf/table1", "cifar10,dir(0.05),ditto,personal_acc").personalisation is None  # it acts in rounds


def test_words_choose_rows_column_by_column():
    rows = plan.chosen(plan.published("fedetf/table1"), "cifar10, dir(0.05), fedavg, fedetf")
    assert {(r.method, r.metric) for r in rows} == {
        (m, k) for m in ("fedavg", "fedetf") for k in ("general_acc", "personal_acc")
    }
    assert len(plan.chosen(plan.published("fedetf/table5"), "epochs=8,fedavg")) == 2


@pytest.mark.parametrize(
    ("table", "words", "says"),
    [
        ("fedetf/table44", None, "fedetf has no table44; it has table1, "),
        ("fedtf/table1", None, "did you mean 'fedetf'"),
        ("fedetf", None, "name a table too, such as fedetf/table1"),
        ("fedetf/table1", " ", "rows=' ': it is empty"),
        ("fedetf/table1", "fedavgg", "did you mean 'fedavg'"),
        ("fedetf/table1", "epochs=77", "the table has epochs 1, 3"),
        ("fedetf/table1", "colour=red", "the table has no colour"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(table, words, says):
    with pytest.raises(ConfigError, match=says.replace("(", r"\(")):
        plan.chosen(plan.published(table), words)


def test_tables_that_depart_from_their_papers_usual_setting():
    assert cell("fedfn/table2", "cifar10,shard(2),fedavg").settings.weight_decay == 1e-5  # FedNTD's code
    other = cell("fedfn/table3", "resnet18,shard(2),fedavg").settings
    assert (other.weight_decay, other.aggregation) == (0.0, "uniform")  # FedBABU's
    letters = cell("fedavg-etf-gmv/table6", "femnist,epochs=2,fedavg").settings
    assert (letters.partition, letters.clients, letters.local_test, letters.augment) == (
        "natural",
        100,
        "shard",
        "none",
    )


def test_ccvr_in_fedetfs_tables_is_finetuned_but_for_table_1_on_cifar():
    first = cell("fedetf/table1", "cifar10,dir(0.05),ccvr,personal_acc")
    assert (first.training, first.calibration, first.settings.personal_from) == ("fedavg", "ccvr", "global")
    second = cell("fedetf/table2", "ccvr,personal_acc,clients=50,sampling=0.4")
    assert (second.training, second.settings.personal_from) == ("fedavg+ccvr", "calibrated")
