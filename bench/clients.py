"""What a federation of N clients costs before its first round.

    .venv/bin/python bench/clients.py 1000000 [partition] [local_test]

Four samples of eight numbers a client, ten clients a round, two rounds. One N a process, since memory is its peak.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import headway
from headway.training import rounds


def main(clients: int, partition: str = "iid", local_test: str = "none") -> None:
    rng = np.random.default_rng(0)
    rows = 4 * clients
    x, y = rng.standard_normal((rows, 8), dtype=np.float32), rng.integers(0, 10, rows)
    group = {"group": np.arange(rows) % clients} if partition == "natural" else {}
    data = headway.Dataset.of(x, y, x[:1000].copy(), y[:1000].copy(), **group)
    given: dict[str, Any] = {"data": data, "partition": partition, "clients": clients, "local_test": local_test}
    given |= {"sampling": 10 / clients, "model": "mlp_small", "rounds": 2, "workers": 1}
    begun, first = time.perf_counter(), []
    run_round = rounds.run_round

    def timed(*args: Any) -> Any:
        first.append(time.perf_counter() - begun)
        return run_round(*args)

    rounds.run_round = timed  # the clock stops where the first round begins
    with tempfile.TemporaryDirectory() as folder:
        headway.run("fedavg", out=Path(folder) / "run", **given)
        size = sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{clients:,} clients, {partition}, local_test={local_test}:", end=" ")
    print(f"{first[0]:.2f} s to round 1, peak {peak:.0f} MB, {size / 1e6:.2f} MB on disk")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
