"""t-SNE: embeddings that hold for any number of points, panels by truth and prediction, class vectors by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diagnosed import blobs, check_whole, finished, task_on

from headway.analysis.diagnostics.finding import NotApplicable
from headway.analysis.diagnostics.prototypes import consistency
from headway.analysis.diagnostics.tsne import class_vectors, embedding, perplexity_for, tsne
from headway.metrics.geometry import cosines, known_mean, pairs, trained_head
from headway.runs import posthoc as afterwards


def test_perplexity_adapts_to_few_points() -> None:
    assert [perplexity_for(n) for n in (2, 4, 31, 91, 2000)] == [1.0, 1.0, 10.0, 30.0, 30.0]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 12])
def test_any_number_of_points_has_an_embedding(n: int) -> None:
    points = np.random.default_rng(0).normal(size=(n, 5))
    found = embedding(points, seed=3)
    assert found.shape == (n, 2)
    assert np.isfinite(found).all()
    assert np.array_equal(found, embedding(points, seed=3))


def test_equal_points_fall_together_and_clusters_apart() -> None:
    rng = np.random.default_rng(1)
    near = rng.normal(size=(20, 4)) * 0.01
    points = np.concatenate([near, near[:5], near + 50])
    found = embedding(points, seed=0)
    assert np.array_equal(found[:5], found[20:25])
    inside, apart = found[:25].std(0).max(), np.linalg.norm(found[:25].mean(0) - found[25:].mean(0))
    assert apart > 2 * inside
    assert embedding(np.ones((6, 3)), seed=0).tolist() == [[0.0, 0.0]] * 6


def test_a_frozen_classifier_is_replaced_for_the_third_panel(tmp_path) -> None:
    found = tsne(finished("fedetf", tmp_path / "run"))
    assert "accuracy of these points (prediction after ccvr)" in found.summary
    assert "Calibration: ccvr(replace_head=True), made for this figure, not saved." in found.about


def test_three_panels_with_a_calibration_made_on_the_spot(tmp_path) -> None:
    subject = finished("fedavg", tmp_path / "run")
    before = sorted(p.name for p in (tmp_path / "run").rglob("*"))
    found = tsne(subject)
    assert sorted(p.name for p in (tmp_path / "run").rglob("*")) == before  # nothing is written
    result = afterwards.calibrate(tmp_path / "run", "ccvr")
    right = [v for k, v in found.summary.items() if k.startswith("accuracy")]
    assert right == [result["before"], result["after"]]
    assert "not saved" in found.about
    assert "calibrated/ccvr" in tsne(subject).about
    assert list(found.tables["points"][0]) == [
        "x",
        "y",
        "truth",
        "prediction before calibration",
        "prediction after ccvr",
    ]
    check_whole(found, tmp_path)


def test_two_panels_where_the_recipe_refuses_calibration(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        "headway.analysis.diagnostics.calibrated.ATTEMPTS", ("ccvr",)
    )  # which a fixed classifier refuses
    found = tsne(finished("fedetf", tmp_path / "run"))
    assert list(found.tables["points"][0]) == ["x", "y", "truth", "prediction"]
    check_whole(found, tmp_path)


def test_the_run_s_own_calibration_is_used(tmp_path) -> None:
    subject = finished("fedper+ccvr(epochs=4,global_head=mean_of_personal)", tmp_path / "run")
    found, ran = tsne(subject), subject.saved.run.summary
    right = [v for k, v in found.summary.items() if k.startswith("accuracy")]
    assert right == [ran["calibrated"]["before"], ran["calibrated"]["after"]]
    assert "the run's own" in found.about


@pytest.mark.parametrize("recipe", ["local", "lgfedavg"])
def test_without_a_global_body_there_is_no_picture_of_features(recipe: str, tmp_path) -> None:
    with pytest.raises(NotApplicable, match="bodies are personal"):
        tsne(finished(recipe, tmp_path / "run"))


@pytest.mark.parametrize("recipe", ["fedtc", "local", "fednh"])
def test_class_vectors_on_a_run(recipe: str, tmp_path) -> None:
    subject = finished(recipe, tmp_path / "run")
    found = class_vectors(subject)
    check_whole(found, tmp_path)
    points = found.tables["points"]
    assert sum(r["kind"] == "row" for r in points) == len(subject.clients) * 10
    assert sum(r["kind"] == "prototype" for r in points) == int((subject.counts[list(subject.clients)] > 0).sum())


@pytest.mark.parametrize("recipe", ["fedavg", "fedavg+clsnorm", "fedtc", "fedrod"])
def test_classifiers_have_one_cosine(recipe: str, tmp_path) -> None:
    """Of the weight vectors as the logits use them: unit ones where the head normalises them."""
    subject = finished(recipe, tmp_path / "run")
    found, other = class_vectors(subject), consistency(subject)
    wanted = other.summary["classifier_cosine"]
    assert found.summary["mean cosine between clients' classifiers"] == pytest.approx(wanted, abs=1e-12)
    if recipe == "fedavg+clsnorm":
        raw = torch.stack([trained_head(m.net).weight.detach().double().flatten() for m in subject.local_models()])
        assert known_mean(pairs(cosines(raw))) != pytest.approx(wanted, abs=1e-4)


def test_agreement_on_classes_is_that_of_the_clients_that_own_them(tmp_path) -> None:
    subject = finished("fedavg", tmp_path / "run")
    own = subject.counts[list(subject.clients)] > 0  # [K, C]
    W = torch.stack([s.rows for s in subject.local_statistics])  # [K, C, d]
    prototypes = consistency(subject).tables["per_class"]
    for c, row in enumerate(class_vectors(subject).tables["classes"]):
        assert row["rows_of_all"] == pytest.approx(known_mean(pairs(cosines(W[:, c]))))
        assert row["rows_of_owners"] == pytest.approx(known_mean(pairs(cosines(W[own[:, c], c]))))
        assert row["prototypes"] == pytest.approx(prototypes[c]["consistency"])


def test_a_frozen_classifier_is_the_same_everywhere(tmp_path) -> None:
    found = class_vectors(finished("fedetf", tmp_path / "run"))
    assert found.summary["mean cosine between clients' classifiers"] == pytest.approx(1.0)
    assert "do not train the classifier" in found.about


@pytest.mark.parametrize("classes", [2, 40])
def test_few_and_many_classes(classes: int, tmp_path) -> None:
    task = task_on(blobs(classes, tuple(["$_{"] * classes)))
    subject = finished("fedavg+ccvr(epochs=1)", tmp_path / "run", task)
    check_whole(tsne(subject), tmp_path)
    check_whole(class_vectors(subject), tmp_path)
