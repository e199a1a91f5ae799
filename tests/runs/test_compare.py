"""The figures of a comparison."""

from __future__ import annotations

from run_files import DIGITS

import headway


def test_calibration_traffic_is_part_of_the_megabytes(tmp_path):
    result = headway.compare(["fedavg", "fedavg+ccvr", "fedavg+ffc"], out=tmp_path / "c", **DIGITS)
    size = {row.recipe: row.mean("megabytes") for row in result.rows}
    assert size["fedavg+ccvr"] > size["fedavg"]
    assert size["fedavg+ffc"] > size["fedavg"]
