"""What is printed as assumed: what the cells at hand rest on, and the values they are made with."""

import pytest

from headway.analysis.published import PAPERS
from headway.analysis.reproduce import figures, plan
from headway.analysis.reproduce.assumptions import ASSUMPTIONS, assumptions
from headway.analysis.reproduce.protocols import recipe_for
from headway.core import Step
from headway.methods.algorithm2 import Algorithm2
from headway.methods.balanced import Balanced
from headway.methods.etfproj import ETFProj
from headway.methods.fedexp import FedExP
from headway.methods.fedrod import FedRoD


def said(table, words=None, scale="full"):
    return assumptions(plan.cells(plan.chosen(plan.published(table), words), scale, {}))


def virtual(table, words=None):
    told = [line for line in said(table, words) if line.startswith("virtual features")]
    return told[0].removeprefix("virtual features a class: ").partition(" (CIFAR-10")[0] if told else None


def test_the_virtual_features_told_are_those_of_the_rows_at_hand():
    assert virtual("ccvr/table2", "cifar100") == "cifar100 500 at dir(0.5)"
    assert virtual("ccvr/table2", "cinic10,fedavg+ccvr") == "cinic10 1000 at dir(0.5)"
    assert virtual("ccvr/table2", "cifar10") == "cifar10 100 at dir(0.5), 2000 at dir(0.1) and dir(0.05)"
    assert virtual("ccvr/table2") == (
        "cifar10 100 at dir(0.5), 2000 at dir(0.1) and dir(0.05); cifar100 500 at dir(0.5); cinic10 1000 at dir(0.5)"
    )
    assert virtual("ccvr/table2", "fedavg,moon") is None  # nothing is calibrated
    assert virtual("ccvr/table3") is None  # the table names them
    assert any("100 epochs" in line for line in said("ccvr/table3"))


# table, rows -> what is said for them; other rows of the table, for which it is not
WHERE = [
    ("ccvr/table2", "cifar100", "turned by up to 15 degrees", "cifar10"),
    ("ccvr/table2", "cinic10", "10 epochs, 100 rounds and learning rate 0.01 are CIFAR-10's", "cifar10"),
    ("ccvr/table2", "cifar100", "(mobilenetv2_std)", "cifar10"),
    ("fedetf/table1", "cifar10,ccvr", "the 10 virtual features a class and 100 epochs", "fedavg"),
    ("fedetf/table1", "cifar10,fedetf,personal_acc", "Algorithm 2: 20 turns of 3 epochs a stage", "fedetf,general_acc"),
    ("fedetf/table1", "tinyimagenet,fedetf", "keeps its 3 epochs a stage", "cifar10,fedetf"),
    ("fedetf/table5", "fedetf,epochs=8", "keeps its 3 epochs a stage", "fedavg"),
    ("fedetf/table4", "fedetf-fixedtemp", "beta = 1.0", "fedetf"),
    ("fedetf/table4", "fedetf", "counts as one sample in the balanced loss", "fedetf-nobalance"),
    ("fedfn/tableA9", "fedrep", "the body for one", "fedavg+ft"),
    ("fedfn/table2", "fedexp", "the mean of its last two iterates", "fedavg"),
    ("fedfn/table2", "cifar100", "MobileNet's BatchNorm takes the statistics of each batch", "cifar10"),
    ("fedfn/table3", "resnet18-pretrained", "resnet18_tv, 7x7 stem", "resnet18"),
    ("fedavg-etf-gmv/table6", "fedavg+etf+gmv", "alpha 0.5 and starts at round 500 of 1000", "fedavg"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "words", "text", "others"), WHERE)
def test_an_assumption_is_told_where_a_cell_rests_on_it_and_nowhere_else(table, words, text, others):
    assert sum(text in line for line in said(table, words)) == 1
    assert not any(text in line for line in said(table, others))


def test_flags_of_the_published_rows_are_told():
    assert any("rounds of Table 4 are not sure" in line and "200 are taken" in line for line in said("fedetf/table4"))
    assert not any("not sure" in line for line in said("fedetf/table1"))
    assert any("Table 3 does not name its epochs: 15 are taken" in line for line in said("fedfn/table3"))
    assert not any("Table 3 does not name" in line for line in said("fedfn/table2"))


def test_networks_are_told_only_where_they_run():
    assert any("no fully connected layers" in line for line in said("fedavg-etf-gmv/table4"))
    assert not any("no fully connected layers" in line for line in said("fedavg-etf-gmv/table4", scale="cpu"))
    assert not any("BatchNorm" in line for line in said("fedfn/table2", "cifar100", "cpu"))


def test_what_is_told_is_what_is_done():
    stages = Algorithm2().personalise(epochs=8, lr=0.5)
    assert (Algorithm2().turns, {stage.epochs for stage in stages}) == (20, {3})
    plain = Step(0.3, momentum=0.7, decay=0.2)  # of the task
    zero, a, b = (stage.step(plain, "head.weight") for stage in stages[:3])
    assert (zero, a, b) == (plain, Step(0.1, momentum=0.0, decay=0.0), Step(0.05, momentum=0.9, decay=5e-4))
    assert (Balanced().absent, FedRoD().absent) == ("floor1", "floor1")
    assert (ETFProj().beta, FedExP().average) == (1.0, True)
    (rep,) = plan.chosen(plan.published("fedfn/tableA9"), "shard(10),fedrep")
    assert recipe_for(rep, 320) == "fedrep(body_epochs=1)"
    (letters,) = plan.chosen(plan.published("fedavg-etf-gmv/table6"), "fedavg+etf+gmv,epochs=2")
    assert recipe_for(letters, 1000) == "fedavg+etf+gmv(alpha=0.5,warmup=500)"
    (turned,) = plan.cells(plan.chosen(plan.published("ccvr/table2"), "cifar100,fedavg"), "full", {})
    assert turned.settings.augment == "crop(4)+flip+rotate(15)"


def test_every_assumption_is_told_for_some_table_or_figure():
    assert set(ASSUMPTIONS) == set(PAPERS)
    told = {line for name in plan.tables() for line in said(name)}
    told |= {line for preset in figures.FIGURES.values() for line in assumptions(preset.cells("full", {}))}
    assert {a.text for paper in ASSUMPTIONS.values() for a in paper} <= told
