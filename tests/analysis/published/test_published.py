"""The papers' numbers as package data: complete, readable, and about recipes that exist."""

import math

import pytest

from headway.analysis import published
from headway.analysis.published import choice
from headway.analysis.published.choice import findings
from headway.methods import REGISTRY, recipe
from headway.methods.references import REFERENCES

COUNTS = {
    "fedetf_table1": 120, "fedetf_table2": 40, "fedetf_table3": 28, "fedetf_table4": 10, "fedetf_table5": 40,
    "fedetf_figures": 2, "fedfn_table2": 63, "fedfn_tableA8": 135, "fedfn_table3": 24, "fedfn_tableA2_grid": 240,
    "fedfn_tableA3_grid": 180, "fedfn_tableA4_grid": 180, "fedfn_tableA5_grid": 192,
    "fedfn_tableA6_A7_sphere_grid": 108, "fedfn_tableA9": 42, "fedfn_tableA10": 60, "fedfn_tableA11": 9,
    "fedfn_tableA12": 67, "fedfn_tableA13_A14": 27, "fedtc_table1": 36, "fedtc_table2": 24,
    "fedavg-etf-gmv_table1": 36, "fedavg-etf-gmv_table2": 30, "fedavg-etf-gmv_table3": 96,
    "fedavg-etf-gmv_table4": 24, "fedavg-etf-gmv_table5_6": 16, "ccvr_table1": 15, "ccvr_table2": 60,
    "ccvr_table3": 54, "ccvr_table4": 18, "ccvr_table5": 24,
}  # fmt: skip


def one(**wanted):
    found = [r for r in published.rows() if all(getattr(r, k) == v for k, v in wanted.items())]
    assert len(found) == 1
    return found[0]


def test_every_table_is_there_with_all_its_rows():
    assert {name: len(table) for name, table in published.tables().items()} == COUNTS
    assert len(published.rows()) == sum(COUNTS.values()) == 2000


@pytest.mark.parametrize("method", sorted({r.method for r in published.rows() if r.named}))
def test_every_method_is_a_recipe(method):
    assert recipe(method).pieces


def test_only_six_rows_of_one_table_have_lost_their_names():
    lost = [r for r in published.rows() if not r.named]
    assert {(r.paper, r.table) for r in lost} == {("fedavg-etf-gmv", "1")}
    assert {r.method for r in lost} == {f"row{i}_unnamed" for i in (2, 4, 5, 9, 10, 11)}


def test_means_are_percentages_and_spreads_are_not_negative():
    for r in published.rows():
        top = 1 if "fraction" in r.metric else 100
        assert r.mean is None or (math.isfinite(r.mean) and 0 < r.mean <= top), r
        assert r.std is None or 0 <= r.std < 50, r


def test_settings_are_in_range():
    for r in published.rows():
        assert r.paper in published.PAPERS
        assert r.table
        assert r.dataset
        assert r.model
        assert r.partition
        assert r.clients is None or 1 <= r.clients <= 100
        assert r.sampling is None or 0 < r.sampling <= 1
        assert r.epochs is None or 1 <= r.epochs <= 20
        assert r.rounds is None or 50 <= r.rounds <= 1000


def test_a_row_is_read_by_type():
    r = one(paper="fedetf", table="1", dataset="cifar10", partition="dir(0.1)", method="fedetf", metric="general_acc")
    assert (r.clients, r.sampling, r.epochs, r.rounds, r.mean, r.std) == (20, 1.0, 3, 200, 59.56, 1.84)
    assert r.extra == {}


def test_extra_is_a_dict_and_a_bare_word_is_a_key():
    r = one(paper="fedfn", table="2", method="scaffold", partition="shard(3)")
    assert r.extra == {"lr": "0.01", "failed": ""}
    assert r.mean is None
    assert r.failed


def test_papers_have_names_and_citations():
    assert set(published.PAPERS) == set(published.NAMES) == {r.paper for r in published.rows()}
    assert published.citation(published.PAPERS["fedtc"]).startswith("Liu, Wang, Liu, Gheisari, Xu, Jiang and Zhang: ")
    for key in REFERENCES:
        line = published.citation(key)
        assert line.endswith(f"{REFERENCES[key]['year']}.")
        assert not set(line) & set("{}\\")


# ---- which rows speak about a piece
def test_at_most_eight_findings_all_about_the_piece():
    for piece in REGISTRY.pieces:
        found = findings(piece)
        assert len(found) <= choice.MOST
        for f in found:
            assert piece.name in choice.parts(f.row.method)


def test_the_own_paper_comes_first():
    papers = [f.row.paper for f in findings(REGISTRY.by_name["ccvr"])]
    assert papers == ["ccvr"] * 6 + ["fedetf"] * 2


def test_only_plain_fedavg_speaks_of_fedavg():
    assert {f.row.method for f in findings(REGISTRY.by_name["fedavg"])} == {"fedavg"}


def test_the_gain_is_over_fedavg_in_the_same_setting():
    (first,) = [f for f in findings(REGISTRY.by_name["etfproj"]) if f.row.mean == 59.56]
    assert first.gain == pytest.approx(59.56 - 52.76)  # FedETF, Table 1: CIFAR-10, Dirichlet 0.1


def test_a_grid_is_its_best_cell_against_fedavgs_best():
    (f,) = [f for f in findings(REGISTRY.by_name["featnorm"]) if f.row.table == "A14"]
    assert (f.row.mean, f.row.extra["mu"], f.tried) == (39.5, "0.05", 8)
    assert f.gain == pytest.approx(39.5 - 36.3)


def test_a_finetuned_recipe_is_held_against_finetuned_fedavg():
    row = one(paper="fedfn", table="A9", partition="shard(10)", method="fedfn+ft", metric="personal_acc")
    base = one(paper="fedfn", table="A9", partition="shard(10)", method="fedavg+ft", metric="personal_acc")
    assert choice.finding([row], "fn").gain == pytest.approx(row.mean - base.mean)


def test_a_misprinted_cell_is_left_out():
    assert one(paper="fedfn", table="A3", mean=76.61).extra["suspect_typo(7.66?)"] == ""
    assert 76.61 not in {r.mean for cell in choice.cells().values() for r in cell}


def test_what_may_be_compared_is_neither_misprinted_nor_of_a_run_that_broke_down():
    misprint = one(paper="fedfn", table="A3", mean=76.61)
    assert (misprint.read_as, misprint.sound, misprint.failed) == ("7.66", None, False)
    at_chance = one(paper="fedavg-etf-gmv", table="4", method="fedavg", partition="classes(2)", epochs=5)
    assert (at_chance.mean, at_chance.failed, at_chance.sound) == (10.0, True, None)
    usual = one(paper="fedavg-etf-gmv", table="4", method="fedavg", partition="classes(2)", epochs=2)
    assert (usual.read_as, usual.failed) == (None, False)
    assert usual.sound == usual.mean


def test_a_number_printed_twice_is_shown_once():
    for piece in REGISTRY.pieces:
        seen = [(f.row.paper, *choice.setting(f.row)[2:], f.row.method, f.row.mean) for f in findings(piece)]
        assert len(seen) == len(set(seen)), piece.name
