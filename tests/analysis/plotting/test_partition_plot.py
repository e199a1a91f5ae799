"""A partition in numbers, in rows and in a picture."""

from __future__ import annotations

import numpy as np
import pytest

from headway.analysis.plotting.partition import plot, rows
from headway.data.partitions.partition import Partition, describe, draw

DIGITS = np.random.RandomState(0).randint(10, size=1437)


def skewed(spec: str, clients: int = 20) -> Partition:
    return draw(spec, DIGITS, clients, 0, classes=10)


def test_describe_by_hand() -> None:
    labels = np.array([0, 0, 1, 1, 0, 1, 0, 1])
    alike = Partition("iid", 0, np.arange(8), np.array([0, 4, 8]), 2, "", {})
    facts = describe(alike, labels)
    assert facts["js_divergence"] == pytest.approx(0, abs=1e-12)
    assert facts["effective_classes"] == pytest.approx(2)
    assert facts["size_gini"] == 0
    apart = Partition("x", 0, np.array([0, 1, 4, 2]), np.array([0, 3, 4, 4]), 2, "", {})
    facts = describe(apart, labels)
    assert facts["js_divergence"] == pytest.approx(1)
    assert facts["effective_classes"] == pytest.approx(1)
    assert (facts["size_min"], facts["size_median"], facts["size_max"], facts["empty"]) == (0, 1, 3, 1)
    assert (facts["classes_min"], facts["classes_mean"], facts["classes_max"]) == (1, 1, 1)
    assert facts["size_gini"] == pytest.approx(0.5)  # sum |a-b| over ordered pairs 12 / (2 * 9 * 4/3)


def test_jensen_shannon_by_definition() -> None:
    p = skewed("dir(0.5)", clients=6)
    q = p.counts(DIGITS) / p.sizes()[:, None]

    def kl(a: np.ndarray, b: np.ndarray) -> float:
        return sum(x * np.log2(x / y) for x, y in zip(a, b, strict=True) if x > 0)

    pairs = [(kl(q[i], (q[i] + q[j]) / 2) + kl(q[j], (q[i] + q[j]) / 2)) / 2 for i in range(6) for j in range(i)]
    assert describe(p, DIGITS)["js_divergence"] == pytest.approx(np.mean(pairs))


def test_rows_fit_a_terminal() -> None:
    table = rows(skewed("dir(0.5)", clients=40), DIGITS, limit=30)
    assert table[0][:3] == ["client", "size", "0"]
    assert len(table) == 32
    assert table[-1][0] == "... and 10 more"
    assert len({len(row) for row in table}) == 1
    assert int(table[1][1]) == sum(int(n) for n in table[1][2:] if n != ".")
    many = rows(draw("iid", np.arange(100), 2, 0, classes=100), np.arange(100))
    assert many[0] == ["client", "size", "classes", "largest"]
    assert many[1][1:3] == ["50", "50"]
    assert len(many) == 3


def test_plot_writes_a_picture(tmp_path) -> None:
    odd = ["_hidden", "a$b", "x_{$", *map(str, range(7))]
    plot(skewed("dir(0.01,empty=drop)"), DIGITS, tmp_path / "sub" / "bars.png", odd, "cost in $ and _")
    plot(skewed("dir(0.01,empty=drop)", clients=80), DIGITS, tmp_path / "heat.png")
    for name in ("sub/bars.png", "heat.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
