"""Run directories by hand: small numbers in the files that a run leaves, without any training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.training.settings import Settings

COUNTS = [[4, 0], [1, 3], [0, 2]]  # three clients, two classes


def write_run(
    path: Path, recipe: str = "fedavg", seed: int = 0, *, accs=(0.25, 0.5), personal: Any = (0.5, 0.75, 1.0),
    failed: str | None = None, finished: bool = True, label: str | None = None, counts=COUNTS, loss=1.0,
    **settings: Any,
) -> Path:  # fmt: skip
    """A run whose global accuracy is `accs` round by round; `personal` holds the clients' at the end."""
    path.mkdir(parents=True)
    s = Settings(rounds=max(len(accs), 1), clients=len(counts), seed=seed, **settings).model_dump()
    config = {
        "format": 1, "recipe": recipe, "label": label or recipe, "settings": s,
        "options": {"device": "cpu", "threads": 1, "engine": "local", "store": "auto"},
        "identity": {"recipe": recipe, **s, "data_hash": "d", "partition_hash": f"p{seed}"},
        "versions": {"headway": "0.1.0", "python": "3.11.7"}, "command": ["headway"],
        "started": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    clients = [{"id": k, "n": sum(c), "counts": c} for k, c in enumerate(counts)]
    head = {"spec": s["partition"], "seed": seed, "hash": f"p{seed}", "notes": {}}
    (path / "partition.json").write_text(json.dumps(head | {"clients": clients}))
    rows = [
        {
            "round": t + 1, "global_acc": acc, "global_loss": loss, "balanced_acc": acc, "personal_acc": acc,
            "pooled_local_acc": acc, "train_loss": loss, "clients": 3, "bytes_up": 1_000_000, "bytes_down": 3_000_000,
            "diverged": False,
        }
        for t, acc in enumerate(accs)
    ]  # fmt: skip
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    times = [{"round": r["round"], "seconds": 0.5, "train_seconds": 0.4} for r in rows]
    (path / "timings.jsonl").write_text("".join(json.dumps(t) + "\n" for t in times))
    own = None
    if personal is not None:
        mean = sum(personal) / len(personal)
        own = {"mean": mean, "std": 0.0, "pooled": mean, "clients": len(personal), "of": len(counts), "stages": {}}
        own["per_client"] = {str(k): v for k, v in enumerate(personal)}
    known = [a for a in accs if a is not None]
    summary = {
        "recipe": recipe, "label": label or recipe, "seed": seed, "rounds": len(accs), "failed": failed,
        "global_acc": known[-1] if known else None, "last": known[-1] if known else None,
        "best": max(known, default=None), "last5": sum(known) / len(known) if known else None, "last50": None,
        "balanced_acc": 0.5, "per_class": [0.25, 0.75] if known else None, "personal": own,
        "bytes_up": 1_000_000 * len(rows), "bytes_down": 3_000_000 * len(rows), "seconds": 0.5 * len(rows),
    }  # fmt: skip
    if finished:
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def write_finding(run: Path, name: str = "norms", png: bytes | None = None, **more: Any) -> None:
    folder = run / "diagnostics"
    folder.mkdir(exist_ok=True)
    record = {
        "name": name, "title": "Norms", "about": "How long the rows are.", "alt": "Two bars.",
        "figure": f"{name}.png" if png else None, "summary": {"mean norm": 1.25},
        "tables": {"rows": [{"class": str(i), "norm": i / 4} for i in range(20)]},
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(record | more))
    if png:
        (folder / f"{name}.png").write_bytes(png)
