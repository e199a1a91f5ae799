"""The papers' figures as presets, checked against the papers' text, and made on digits."""

import csv
import io
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from calling import headway as call
from rich.console import Console

from headway.analysis.diagnostics.diagnose import Results
from headway.analysis.published import PAPERS
from headway.analysis.reproduce import figures, joint, plan
from headway.analysis.reproduce.joint import JOINTS, Panel, finding_of, value_of
from headway.analysis.reproduce.protocols import PROTOCOLS
from headway.analysis.reproduce.run_figure import FigureResult
from headway.analysis.reproduce.table import CUT
from headway.base.errors import ConfigError

SMALL = [f"--set={s}" for s in ("data=digits", "model=mlp_small", "train_size=300", "test_size=100", "rounds=2",
                                "epochs=1", "clients=5", "augment=none", "normalise=dataset")]  # fmt: skip
ALPHAS = {"dir(0.5)", "dir(0.1)", "dir(0.05)"}
TEN = {"fedavg", "fedprox", "feddyn", "ditto", "fedrep", "ccvr", "fedproto", "fedrod", "fednh", "fedetf"}


def draw(name, tmp_path, *words, rows=None):
    chosen = ["--rows", rows] if rows else []
    out = ["--out", str(tmp_path), "--workers", "1", "--json"]
    done = call("reproduce", name, *chosen, *SMALL, *words, *out)
    assert done.code == 0, done.err
    return done.json


def points(tmp_path, name, finding="joint"):
    with (tmp_path / name / f"{finding}.points.csv").open() as file:
        return list(csv.DictReader(file))


# ---- presets
def test_every_figure_with_something_measured_is_a_preset_and_its_cells_can_be_made():
    for preset in figures.FIGURES.values():
        made = preset.cells("cpu", {})
        assert len(made) == len(preset.rows())
        assert preset.joint in ("", *JOINTS)
    assert {name.partition("/")[0] for name in figures.FIGURES} == set(PAPERS) == set(PROTOCOLS)
    with pytest.raises(ConfigError, match="a drawing"):
        figures.find("fedetf/fig2")
    with pytest.raises(ConfigError, match="ccvr/table3"):
        figures.find("ccvr/fig7")
    with pytest.raises(ConfigError, match="fedtc has fig3, fig4"):
        figures.find("fedtc/figure9")
    assert figures.find("fedetf/Figure5") is figures.FIGURES["fedetf/fig5"]
    assert figures.find("fedetf/table1") is None


# figure -> data set and model -> partitions, as the captions and sections of the papers say
SETTINGS = {
    "fedetf/fig4": {("cifar10", "resnet20"): {"dir(0.05)"}, ("cifar100", "resnet20"): {"dir(0.05)"}},
    "fedetf/fig5": {("cifar10", "resnet20"): {"dir(0.05)"}},
    "fedetf/fig6": {("cifar10", "resnet20"): {"dir(0.1)"}},
    "fedetf/fig7": {("cifar10", "resnet20"): {"dir(0.1)", "dir(0.05)"}},
    "fedetf/fig8": {("cifar10", "resnet20"): {"dir(0.1)"}, ("cifar100", "resnet20"): {"dir(0.1)"}},
    "fedfn/fig1": {("cifar10", "vgg11"): {"shard(10)", "shard(2)"}},
    "fedfn/fig2": {("cifar10", "vgg11"): {"shard(2)"}},
    "fedfn/fig3": {("cifar10", "vgg11"): {"iid", "shard(10)", "shard(5)", "shard(2)"}},
    "fedfn/fig4": {("cifar10", "vgg11"): {"shard(2)", "shard(3)", "shard(5)", "shard(10)", "iid"}},
    "fedfn/figA1": {("cifar10", "vgg11"): {"shard(2)"}},
    "fedfn/figA2": {("cifar10", "vgg11"): {"iid", "shard(10)", "shard(5)", "shard(2)"}},
    "fedfn/figA3": {("cifar100", "mobilenet"): {"iid"}},
    "fedtc/fig3": {("cifar10", "mcmahan_cnn"): {"dir(0.1)", "dir(0.5)", "dir(5.0)"}},
    "fedtc/fig4": {("cifar10", "mcmahan_cnn"): {"dir(0.1)", "dir(0.5)", "dir(5.0)"}},
    "fedavg-etf-gmv/fig5": {
        ("cifar10", "vgg11"): {"classes(2)", "classes(5)"}, ("cifar100", "vgg11"): {"classes(20)"}
    },
    "ccvr/fig1": {("cifar10", "moon_cnn"): {"dir(0.1)"}},
    "ccvr/fig2": {("cifar10", "moon_cnn"): {"iid", *ALPHAS}},
    "ccvr/fig3": {("cifar10", "moon_cnn"): {"iid", *ALPHAS}},
    "ccvr/fig5": {("cinic10", "mobilenetv2"): {"dir(0.5)"}},
    "ccvr/fig6": {("cifar10", "moon_cnn"): {"dir(0.1)"}},
    "ccvr/fig10": {("cifar10", "moon_cnn"): {"dir(0.1)"}},
    "ccvr/fig11": {("cifar10", "moon_cnn"): {"dir(0.1)"}},
    "ccvr/fig12": {("cifar10", "moon_cnn"): {"dir(0.1)"}},
    "ccvr/fig13": {("cinic10", "mobilenetv2"): {"dir(0.5)"}},
    "ccvr/fig15": {
        ("cifar10", "moon_cnn"): ALPHAS, ("cifar100", "mobilenetv2"): {"dir(0.5)"},
        ("cinic10", "mobilenetv2"): {"dir(0.5)"},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_data_sets_models_and_partitions_are_the_papers(name):
    found = {}
    for row in figures.FIGURES[name].rows():
        found.setdefault((row.dataset, row.model), set()).add(row.partition)
    assert found == SETTINGS[name]


def test_methods_and_epochs_are_the_papers():
    def methods(name, **only):
        rows = figures.FIGURES[name].rows()
        return {r.method for r in rows if all(getattr(r, k) == v for k, v in only.items())}

    for name in ("fedetf/fig4", "fedetf/fig8"):  # all of Table 1, in both panels
        assert methods(name, dataset="cifar10") == methods(name, dataset="cifar100") == TEN
    assert methods("ccvr/fig11") == {"fedavg", "fedprox", "moon", "fedavg+clsnorm", "fedavg+clsprox"}
    scenes = Counter((r.partition, r.epochs) for r in figures.FIGURES["fedavg-etf-gmv/fig5"].rows())
    assert set(scenes.values()) == {4}
    assert set(scenes) == {(p, e) for p in ("classes(2)", "classes(5)", "classes(20)") for e in (2, 5)}
    mus = {"0", "0.0001", "0.0005", "0.001", "0.005", "0.01", "0.05"}
    assert methods("fedfn/fig4", partition="shard(3)") == {f"fedfr(mu={mu})" for mu in mus}
    assert methods("fedfn/fig4", partition="iid") == {"fedfr(mu=0)"}
    assert "labels" in figures.FIGURES["fedetf/fig1"].diagnostics


def test_where_only_labels_are_counted_one_round_is_trained():
    for name in ("fedetf/fig7", "fedtc/fig4", "ccvr/fig15"):
        assert {cell.settings.rounds for cell in figures.FIGURES[name].cells("full", {})} == {1}
    assert {cell.settings.rounds for cell in figures.FIGURES["fedetf/fig7"].cells("cpu", {"rounds": 3})} == {3}


def test_words_choose_scenes_and_equal_scenes_are_one():
    preset = figures.FIGURES["fedavg-etf-gmv/fig5"]
    chosen = preset.cells("cpu", {}, "cifar10,classes(2),epochs=5,fedavg,fedavg+etf")
    assert [(c.row.method, c.settings.epochs) for c in chosen] == [("fedavg", 5), ("fedavg+etf", 5)]
    with pytest.raises(ConfigError, match="rows=cifar11"):
        preset.cells("cpu", {}, "cifar11")
    # with one number of epochs for all, the two scenes of each partition differ in nothing for FedAvg
    alike = preset.cells("cpu", {"epochs": 1}, "cifar10,classes(2),fedavg")
    assert len(alike) == 1


def test_a_figures_printed_numbers_are_its_rows():
    rows = figures.FIGURES["fedetf/fig5"].rows()
    assert {r.method: r.mean for r in rows} == {"fedavg": 29.73, "fedetf": 54.95}
    assert rows == plan.tables()["fedetf/fig5"]


# ---- panels
def test_a_difference_of_columns_by_hand():
    assert value_of({"feature_id": 5.0, "feature_global": 3.5}, "feature_id-feature_global") == 1.5
    assert value_of({"feature_id": 5.0, "feature_global": None}, "feature_id-feature_global") is None


def test_lines_without_points_are_left_out_and_nothing_at_all_is_no_figure():
    found = finding_of("joint", "t", "a", [Panel("p", "x", "y", {"a": [("1", 2.0), ("2", 3.0)], "b": []})])
    assert [row["line"] for row in found.tables["points"]] == ["a", "a"]
    assert found.summary == {"p: a": 3.0}
    assert finding_of("joint", "t", "a", [Panel("p", "x", "y", {})]).draw is None


# ---- made
def test_a_diverged_run_is_told_and_the_others_are_drawn(tmp_path):
    made = draw("ccvr/fig11", tmp_path, "--set=lr=1e8", rows="fedavg,fedprox")
    assert all(run["failed"] for run in made["runs"])
    assert len(made["runs"]) == 2
    assert all("failed" in looked["failed"]["cka"] for looked in made["looked"])
    folder = tmp_path / "fig11"
    assert json.loads((folder / "figure.json").read_text()) == made
    assert (folder / "curves.json").exists()
    assert (folder / "joint.json").exists()


def test_a_diverged_run_still_tells_its_labels_and_its_rounds(tmp_path):
    made = draw("ccvr/fig3", tmp_path, "--set=lr=1e8", rows="dir(0.1)")
    (looked,) = made["looked"]
    assert set(looked["findings"]) == {"labels"}
    assert set(looked["failed"]) == {"classifier_norms"}
    made = draw("fedavg-etf-gmv/fig5", tmp_path, "--set=lr=1e8", rows="cifar10,classes(2),fedavg")
    assert made["runs"][0]["failed"]
    assert set(made["looked"][0]["findings"]) == {"traces"}


def test_layers_by_method_on_one_axis(tmp_path):
    made = draw("ccvr/fig11", tmp_path, rows="fedavg,fedavg+clsnorm")
    lines = Counter(row["line"] for row in points(tmp_path, "fig11"))
    assert set(lines) == {"fedavg", "fedavg+clsnorm"}
    assert len(set(lines.values())) == 1
    layers = {row["x"]: float(row["y"]) for row in points(tmp_path, "fig11") if row["line"] == "fedavg"}
    found = made["looked"][0]["findings"]["cka"]
    assert layers["logits"] == pytest.approx(found["mean CKA of the logits"], rel=1e-5)
    assert (tmp_path / "fig11" / "joint.png").stat().st_size > 5000


@pytest.mark.slow
def test_separability_against_the_oracles_gain(tmp_path):
    made = draw("ccvr/fig6", tmp_path, rows="fedavg,fedavgm")
    rows = {row["line"]: row for row in points(tmp_path, "fig6")}
    for run, looked in zip(made["runs"], made["looked"], strict=True):
        found = looked["findings"]["separability"]
        assert float(rows[run["method"]]["x"]) == pytest.approx(found["sw"], rel=1e-5)
        assert float(rows[run["method"]]["y"]) == pytest.approx(100 * found["oracle_gain"], rel=1e-5, abs=1e-9)


def test_norm_gaps_over_rounds_by_skew(tmp_path):
    draw("fedfn/fig3", tmp_path, "--set=sampling=1.0", "--watch", "drift", rows="iid,shard(2)")
    rows = points(tmp_path, "fig3")
    assert {(row["line"], row["x"]) for row in rows} == {(p, t) for p in ("iid", "shard(2)") for t in "12"}
    watch = next(p for p in tmp_path.glob("runs/*/seed-0/watch.jsonl"))
    first = json.loads(watch.read_text().splitlines()[0])
    assert {"feature_id", "drift_body"} <= set(first)  # the figure's and the user's
    assert any(float(r["y"]) == pytest.approx(first["feature_id"] - first["feature_global"], rel=1e-4) for r in rows)


@pytest.mark.slow
def test_consistency_and_collapse_of_both_methods_beside_the_papers_numbers(tmp_path):
    made = draw("fedetf/fig5", tmp_path)
    panels = {(row["panel"], row["line"]) for row in points(tmp_path, "fig5")}
    for title in ("prototype consistency", "neural collapse"):
        assert {line for panel, line in panels if panel == title} == {"fedavg", "fedetf", "fedetf, projected"}
    assert [run["paper"] for run in made["runs"]] == [29.73, 54.95]
    run = made["runs"][0]
    curve = [row for row in points(tmp_path, "fig5", "curves") if row["line"] == "fedavg"]
    assert run["ours"] == pytest.approx(sum(float(row["y"]) for row in curve) / 2, rel=1e-5)  # the mean of the last 5


def test_cuts_published_numbers_and_settings_are_told(tmp_path):
    out = ["--out", tmp_path, "--workers", "1"]
    done = call("reproduce", "fedetf/fig5", "--rows", "fedetf", *SMALL, *out)
    said = " ".join(done.out.split())
    assert "fedetf, dir(0.05): " in said
    assert ", paper 54.95 %" in said
    assert "model, rounds and samples that are not the paper's are cut" in said
    assert "ours: data=digits, model=mlp_small, train_size=300, test_size=100" in said
    assert ", paper 54.95 % (in another setting: not comparable)" in said
    assert "assumed: changed by --set, whatever is said above: data=digits, model=mlp_small, train_size=300" in said


def test_printed_numbers_are_comparable_only_where_nothing_was_cut_or_changed(tmp_path):
    preset = figures.FIGURES["fedetf/fig5"]
    summary = {"failed": None, "global_acc": 0.5, "rounds": 2}
    told = SimpleNamespace(summary=summary, path=tmp_path)

    def made(scale, changes):
        (cell,) = preset.cells(scale, changes, "fedetf")
        curve = joint.Curve(cell, told, Results(tmp_path, tmp_path), 50.0)
        return FigureResult(preset, scale, "headway reproduce", tmp_path, 8, {}, (curve,), {}, changes)

    def printed(figure):
        console = Console(file=io.StringIO(), width=300)
        figure.show(console)
        return console.file.getvalue()

    paper, cut, changed = made("full", {}), made("cpu", {}), made("full", {"lr": 0.5})
    assert [m.record()["comparable"] for m in (paper, cut, changed)] == [True, False, False]
    assert ["not comparable" in printed(m) for m in (paper, cut, changed)] == [False, True, True]
    assert paper.notes[-1] != cut.notes[-1] == CUT
    assert changed.notes[-1] == "changed by --set, whatever is said above: lr=0.5"
    assert changed.record()["changes"] == {"lr": 0.5}


def test_a_figures_own_choices_are_told_for_it_alone():
    own = {name: preset.chosen for name, preset in figures.FIGURES.items() if preset.chosen}
    assert set(own) == {"fedetf/fig1", "fedetf/fig6", "fedfn/figA3"}
    assert {r.partition for r in figures.FIGURES["fedetf/fig1"].rows()} == {"dir(0.5)", "dir(0.05)"}
    assert own["fedetf/fig1"].startswith("alpha 0.5 and 0.05: ")
    assert own["fedetf/fig6"].startswith("dimensions 10, 32, 64, 128 and 256: ")
    assert [f"(d={d})" in m for d, m in zip((10, 32, 64, 128, 256), figures.DIMENSIONS, strict=True)] == [True] * 5
    cells = figures.FIGURES["fedfn/figA3"].cells("full", {})
    assert {(c.row.method, c.settings.rounds, c.settings.epochs, c.settings.lr) for c in cells} == {
        ("centralized", 320, 1, 0.1), ("centralized+babu", 320, 1, 0.1), ("centralized+fn", 320, 1, 0.5),
    }  # fmt: skip
    assert own["fedfn/figA3"].startswith("320 rounds of one epoch over all data, learning rate 0.1 and with fn 0.5")
    notes = {}
    for name, preset in figures.FIGURES.items():
        curves = tuple(joint.Curve(c, None, None) for c in preset.cells("full", {}))
        notes[name] = FigureResult(preset, "full", "", Path(), 0, {}, curves, {}).notes
    for name, says in own.items():
        assert [other for other, lines in notes.items() if says in lines] == [name]


def test_finetuned_fedavg_is_the_reference_of_the_stages():
    # Figure 6b of FedETF, section 5.3: after stage 0 "better results than the baseline FedAvg with finetuning"
    def run(method, stages, personal):
        told = SimpleNamespace(summary={"personal": personal})
        return SimpleNamespace(
            method=method, partition="dir(0.1)", acc=50.0, stages=stages, run=told, summary=lambda *_: None
        )

    etf = [run(f"fedavg+etfproj(d={d})+balanced+algorithm2", {"received": 0.2, "0": 0.8}, None) for d in (10, 32)]
    lines = joint.dimension([*etf, run("fedavg", {}, {"mean": 0.7})])[-1].lines
    assert lines["fedavg, finetuned"] == [("received", 70.0), ("0", 70.0)]
    assert list(lines) == ["d=10", "d=32", "fedavg, finetuned"]
    assert "fedavg, finetuned" not in joint.dimension([*etf, run("fedavg", {}, None)])[-1].lines  # it diverged
    assert joint.dimension([run("fedavg", {}, {"mean": 0.7})])[-1].lines == {}  # of no stages
    assert {r.method for r in figures.FIGURES["fedetf/fig6"].rows()} == {*figures.DIMENSIONS, "fedavg"}


@pytest.mark.slow
def test_dimension_against_accuracy_collapse_and_stages(tmp_path):
    words = [*(f"fedavg+etfproj(d={d})+balanced+algorithm2" for d in (10, 32)), "fedavg"]
    made = draw("fedetf/fig6", tmp_path, rows=",".join(words))
    rows = points(tmp_path, "fig6")
    accs = {row["x"]: float(row["y"]) for row in rows if row["panel"] == "accuracy, %"}
    etf = dict(zip(("10", "32"), made["runs"], strict=False))
    assert accs == {d: pytest.approx(run["ours"], rel=1e-5) for d, run in etf.items()}
    stages = [row["x"] for row in rows if row["panel"].startswith("personalisation") and row["line"] == "d=32"]
    assert stages == list(made["runs"][1]["stages"])
    assert stages
    level = {row["x"]: float(row["y"]) for row in rows if row["line"] == "fedavg, finetuned"}
    own = json.loads(Path(made["runs"][2]["run"], "summary.json").read_text())["personal"]["mean"]
    assert level == dict.fromkeys(stages, pytest.approx(100 * own, rel=1e-5))


def test_accuracy_against_alpha(tmp_path):
    made = draw("fedtc/fig3", tmp_path, rows="dir(0.5),dir(5.0)")
    found = {(row["line"], row["x"]): float(row["y"]) for row in points(tmp_path, "fig3")}
    assert set(found) == {(m, a) for m in ("fedavg", "local") for a in ("0.5", "5.0")}
    for run in made["runs"]:  # both on the clients' own tests
        alpha = run["partition"].removeprefix("dir(").removesuffix(")")
        assert found[run["method"], alpha] == pytest.approx(run["ours"], rel=1e-5)


def test_accuracy_and_feature_norms_against_the_penalty(tmp_path):
    made = draw("fedfn/fig4", tmp_path, "--set=sampling=1.0", rows="shard(2),fedfr(mu=0),fedfr(mu=0.05)")
    rows = points(tmp_path, "fig4")
    norms = {(row["line"], row["x"]): float(row["y"]) for row in rows if row["panel"] == "feature norms at the end"}
    assert set(norms) == {(f"shard(2), {side}", mu) for side in ("local", "global") for mu in ("0", "0.05")}
    found = made["looked"][1]["findings"]["norms"]
    assert norms["shard(2), local", "0.05"] == pytest.approx(found["feature_id"], rel=1e-5)
    assert {row["x"] for row in rows if row["panel"] == "accuracy, %"} == {"0", "0.05"}


def test_smoothed_curves_a_panel_a_scene(tmp_path):
    made = draw("fedavg-etf-gmv/fig5", tmp_path, "--set=sampling=1.0", rows="classes(2),classes(20),fedavg,fedavg+etf")
    assert len(made["runs"]) == 2  # of classes(2); ten digits have no twenty classes
    assert {"20" in name for name in made["missing"]} == {True}
    rows = [row for row in points(tmp_path, "fig5") if row["line"] == "fedavg"]
    a, b = (float(row["y"]) for row in rows)
    # sigma 2: the neighbour weighs exp(-1/8) = 0.8825
    assert float(rows[0]["smoothed"]) == pytest.approx((a + 0.8825 * b) / 1.8825, rel=1e-4)


def test_a_data_set_that_is_not_at_hand_leaves_its_scene_out(tmp_path, monkeypatch):
    from headway.base.errors import DataError
    from headway.runs import compare as comparison

    real = comparison.load

    def load(name, source=None):
        if name != "cifar10":
            raise DataError(f"data={name}: it is not here")
        return real("digits", source=source)

    monkeypatch.setattr(comparison, "load", load)
    small = [word for word in SMALL if "data=" not in word]
    words = ["--out", str(tmp_path), "--workers", "1", "--json"]
    done = call("reproduce", "ccvr/fig15", *small, *words)
    assert done.code == 0, done.err
    assert len(done.json["runs"]) == 3
    assert done.json["missing"] == {
        f"fedavg, dir(0.5), {name}": f"data={name}: it is not here" for name in ("cifar100", "cinic10")
    }
    nothing = call("reproduce", "ccvr/fig5", *small, "--out", tmp_path / "x", "--workers", "1")
    assert nothing.code == 2
    assert "data=cinic10: it is not here" in nothing.err
    assert not (tmp_path / "x" / "fig5").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--seeds", "3,4"], "seeds=3,4: a figure shows one run"),
        (["--rows", "nosuch"], "rows=nosuch"),
        (["--watch", "nosuch"], "watch=nosuch"),
    ],
)
def test_bad_requests_end_in_one_sentence_and_write_nothing(tmp_path, words, says):
    done = call("reproduce", "ccvr/fig11", *words, "--out", str(tmp_path / "x"))
    assert done.code == 2
    assert says in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_a_place_that_cannot_be_written_is_refused_before_anything_starts(tmp_path):
    done = call("reproduce", "fedtc/fig4", *SMALL, "--out", "/proc/z")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "out=/proc/z: the folder cannot be written" in done.err
    assert done.err.endswith("; choose another --out\n")
    for name, table in (("fig4", "fedtc/fig4"), ("runs", "fedtc/fig4"), ("runs", "ccvr/table2")):
        out = tmp_path / table / name
        out.mkdir(parents=True)
        (out / name).write_text("mine")
        done = call("reproduce", table, *SMALL, "--out", out)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert f"out={out / name}: there is a file of that name; choose another --out" in done.err
        assert [p.name for p in out.iterdir()] == [name]
