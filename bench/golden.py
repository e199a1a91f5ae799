"""SHA-256 of what every recipe ends with, so that a change of the code's shape can be shown to change no bit.

    .venv/bin/python bench/golden.py --write golden.json     # on the code before
    .venv/bin/python bench/golden.py --check golden.json     # on the code after, on the same machine

Every named recipe, and compositions that use each stateful piece, head, share, calibration and personalisation, runs
two rounds on skewed digits. Some also with two workers, with --tune, on Ray, stopped after round 1 and resumed, and
calibrated and personalised afterwards. Hashes differ between kinds of processors: the list is not kept
in the repository.

`--keep FOLDER` with --write keeps a copy of every run as it stood after round 1. `--resume FOLDER` with --check
continues those copies, so that the code after finishes the runs of the code before.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import headway

TASK = {"data": "digits", "clients": 6, "rounds": 2, "batch_size": 32, "partition": "dir(0.3)", "checkpoint_seconds": 0}
COMPANY = {  # names that mean nothing alone
    "dotreg": "sphere+dotreg",
    "algorithm2": "fedetf+algorithm2(turns=2)",
    "alg2": "fedetf+alg2(turns=2)",
}
COMPOSITIONS = """
scaffold+fn                     scaffold+etf+ccvr(replace_head=true,epochs=5)    scaffold+balanced+prox(mu=0.1)
fednova+prox(mu=0.1)            fednova(gmf=0.5)+fn     fednova(mu=0.1)+balanced fedexp+fn
fedexp(average=false)+etfproj   feddyn+fn               feddyn+clsnorm           fedadam+etf
fedyogi+cosine                  fedavgm+sphere+mse      fedadagrad+babu          fedopt+restricted+nobias
moon(mu=5)+ccvr(epochs=5)       moon+fn                 gmv(warmup=1)            fedavg+etf+gmv(warmup=1,space=raw)
gmv(warmup=1,collect=last_epoch)                        mmd(weight=0.5)+fn         ntd+balanced
featnorm+fn                     protoalign(weight=1)    fedproto(weight=1)       fedproto(predict=nearest)
proto+balanced                  fedper+prox(mu=0.1)     fedper+ccvr(global_head=mean_of_personal,epochs=5)
fedrep(head_epochs=2)           lgfedavg+ft             fedrod(private=hyper)    fedrod+prox(mu=0.1)
fedtc(overwrite=true)           fedtc+prox(mu=0.1)      ditto+fn                 ditto(plain_sgd=true)
alternate+fn                    one_step                extra_epoch(epochs=2)    ft(epochs=2)+fn
fedetf+algorithm2               perfedavg+fn            perfedavg(alpha=0.02)    oracle(epochs=5)
oracle(per_class=20,epochs=5)   ccvr(transform=stats,epochs=5)
ccvr(diag=true,proportional=true,epochs=5)
ffc                             sphere+ffc              local+ft                 centralized+fn
scaffold+fn+gmv(warmup=1,space=raw)+ccvr(epochs=5)      spread+prox              clsprox(mu=0.1)
scaffold+moon+fn+ft             fedadam+fedper          feddyn+fedrep            fednova+fedper
"""
SETTINGS = [  # the same recipes under other settings of the task
    ("scaffold", {"momentum": 0.0}),
    ("fednova", {"sampling": 0.5}),
    ("feddyn", {"sampling": 0.5}),
    ("moon", {"sampling": 0.5, "epochs": 2}),
    ("fedtc", {"persist_momentum": True}),
    ("fedavg", {"clip_norm": 1.0, "weight_decay": 1e-3, "lr_decay": "0.5"}),
    ("fedavg+ccvr(epochs=5)", {"personal_from": "calibrated"}),
    ("scaffold+fn", {"model": "resnet8", "clients": 3, "train_size": 300}),
    ("fedrep", {"model": "resnet8", "clients": 2, "train_size": 100}),
    ("fedavg", {"partition": "shard(2)", "clients": 5, "local_test": "0.3", "aggregation": "uniform"}),
    ("fedetf", {"augment": "crop(1)", "watch": "all"}),
]
TWO_WORKERS = ["scaffold+fn+ccvr(epochs=5)", "fedtc", "ditto", "fedrod", "fedproto"]
TUNED = ["fedavg", "scaffold+fn"]
ON_RAY = ["scaffold+fn+ccvr(epochs=5)", "fedtc"]
CALIBRATED = ["ccvr(epochs=5)", "ffc", "oracle(epochs=5)"]
PERSONALISED = ["ft(epochs=2)", "algorithm2(turns=1)"]

Hashes = dict[str, str]


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def of_run(out: Path) -> Hashes:
    """Model and metrics; the figures of the summary without its clock; personal models as one hash."""
    summary = json.loads((out / "summary.json").read_text())
    summary.pop("seconds", None)
    hashes = {
        name: sha(out / name) for name in ("model.safetensors", "metrics.jsonl", "partition.json", "sampling.json")
    }
    hashes["summary.json"] = hashlib.sha256(json.dumps(summary).encode()).hexdigest()
    if own := sorted((out / "clients").glob("*.safetensors")):
        hashes["clients"] = hashlib.sha256("".join(sha(p) for p in own).encode()).hexdigest()
    if (out / "watch.jsonl").exists():
        hashes["watch.jsonl"] = sha(out / "watch.jsonl")
    return hashes


def command(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headway", *map(str, words)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"headway {' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def options(task: dict[str, object]) -> Iterator[str]:
    for key, value in task.items():
        yield from (f"--{key.replace('_', '-')}", str(value))


def stop_after_round_one(out: Path) -> None:
    """What a run killed in its second round leaves behind."""
    newest = max((out / "checkpoint").glob("round-*.json"))
    newest.unlink()
    for name in ("summary.json", "model.safetensors"):
        (out / name).unlink()
    shutil.rmtree(out / "clients", ignore_errors=True)


def layout_of(out: Path) -> str:
    return str(json.loads((out / "config.json").read_text())["options"].get("layout"))


def cases(folder: Path, keep: Path | None) -> Iterator[tuple[str, Callable[[], Hashes]]]:
    """(name, what makes its hashes), each in a folder of its own."""

    def trained(text: str, **more: object) -> Hashes:
        out = folder / "run"
        shutil.rmtree(out, ignore_errors=True)
        headway.run(text, out=out, **{**TASK, **more})
        hashes = of_run(out)
        if keep is not None:
            place = keep / hashlib.sha256(f"{text} {more}".encode()).hexdigest()[:12]
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(out, place)
            stop_after_round_one(place)
            (place / "golden.txt").write_text(name_of(text, more))
        return hashes

    known = [row["name"] for kind in ("pieces", "recipes") for row in json.loads(command("list", kind, "--json"))]
    for text in dict.fromkeys([COMPANY.get(name, name) for name in known] + COMPOSITIONS.split()):
        yield name_of(text, {}), lambda text=text: trained(text)  # type: ignore[misc]
    for text, more in SETTINGS:
        yield name_of(text, more), lambda text=text, more=more: trained(text, **more)  # type: ignore[misc]
    for text in TWO_WORKERS:
        yield f"{text} workers=2", lambda text=text: trained(text, workers=2)  # type: ignore[misc]
    for text in TUNED:
        yield f"{text} tuned", lambda text=text: _tuned(folder, text)  # type: ignore[misc]
    for text in ON_RAY:
        yield f"{text} on ray", lambda text=text: trained(text, engine="ray", workers=2)  # type: ignore[misc]
    yield from _continued(folder)


def name_of(text: str, more: dict[str, object]) -> str:
    return " ".join([text, *(f"{k}={v}" for k, v in more.items())])


def _tuned(folder: Path, text: str) -> Hashes:
    """Tuning times layouts, so the one it takes is part of the name of each hash."""
    out = folder / "tuned"
    shutil.rmtree(out, ignore_errors=True)
    headway.run(text, out=out, tune=True, **TASK)
    layout = layout_of(out)
    return {f"{layout} {name}": value for name, value in of_run(out).items()}


def _continued(folder: Path) -> Iterator[tuple[str, Callable[[], Hashes]]]:
    def resumed(text: str) -> Hashes:
        out = folder / "half"
        shutil.rmtree(out, ignore_errors=True)
        headway.run(text, out=out, **TASK)
        stop_after_round_one(out)
        command("resume", out, "--quiet")
        return of_run(out)

    for text in ("scaffold+fn", "fedtc", "ditto", "moon", "fedexp", "fedavg+etf+gmv(warmup=1)", "fedproto"):
        yield f"{text} resumed", lambda text=text: resumed(text)  # type: ignore[misc]

    def afterwards(what: str, text: str, piece: str) -> Hashes:
        out = folder / f"after-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
        if not out.exists():
            headway.run(text, out=out, **TASK)
        top = out / ("calibrated" if what == "calibrate" else "personalised")
        shutil.rmtree(top, ignore_errors=True)
        command(what, out, "--with", piece)
        files = sorted(p for p in top.rglob("*") if p.is_file())
        return {str(p.relative_to(top)): sha(p) for p in files}

    for base in ("fedavg", "scaffold+fn"):
        for piece in CALIBRATED:
            yield f"{base} calibrate {piece}", lambda b=base, p=piece: afterwards("calibrate", b, p)  # type: ignore[misc]
    for base in ("fedetf", "fedavg+etfproj"):
        for piece in PERSONALISED:
            yield f"{base} personalise {piece}", lambda b=base, p=piece: afterwards("personalise", b, p)  # type: ignore[misc]


def compare(name: str, wanted: Hashes, found: Hashes) -> list[str]:
    if set(wanted) != set(found):
        return [f"{name}: files {sorted(found)} instead of {sorted(wanted)}"]
    return [f"{name}: {file} differs" for file in wanted if wanted[file] != found[file]]


def resume_kept(kept: Path, golden: dict[str, Hashes]) -> list[str]:
    """Runs that the code before left after round 1, continued by the code at hand."""
    wrong, done = [], 0
    with tempfile.TemporaryDirectory() as text:
        for place in sorted(p.parent for p in kept.glob("*/golden.txt")):
            name = (place / "golden.txt").read_text()
            out = Path(text) / "run"
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(place, out)
            (out / "golden.txt").unlink()
            headway.resume(out)
            wrong += compare(f"{name} continued", golden[name.replace(" engine=ray workers=2", " on ray")], of_run(out))
            done += 1
    print(f"{done} runs of the code before continued")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--check", type=Path, metavar="FILE")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="with --write: keep every run as of round 1")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="with --check: continue the runs kept there")
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--no-ray", action="store_true")
    args = parser.parse_args()
    if (args.write is None) == (args.check is None):
        parser.error("give --write FILE or --check FILE")
    golden: dict[str, Hashes] = json.loads(args.check.read_text()) if args.check else {}
    wrong: list[str] = []
    made = hashes = 0
    with tempfile.TemporaryDirectory() as text:
        for name, make in cases(Path(text), args.keep):
            if args.only not in name or (args.no_ray and name.endswith("on ray")):
                continue
            found = make()
            made, hashes = made + 1, hashes + len(found)
            if args.write:
                for _ in range(8 if name.endswith("tuned") else 0):  # as many of its layouts as it happens to take
                    found |= make()
                golden[name] = found
            elif name.endswith("tuned"):
                for _ in range(8):
                    if set(found) <= set(golden[name]):
                        break
                    found = make()
                wrong += compare(name, {k: v for k, v in golden[name].items() if k in found}, found)
            else:
                wrong += compare(name, golden[name], found)
            for line in wrong[-3:] if wrong and wrong[-1].startswith(name) else []:
                print(line, flush=True)
    if args.write:
        args.write.write_text(json.dumps(golden, indent=1) + "\n")
        print(f"{made} cases, {hashes} hashes written to {args.write}")
        return 0
    if args.resume:
        wrong += resume_kept(args.resume, golden)
    print(f"{made} cases, {hashes} hashes: {'all equal' if not wrong else f'{len(wrong)} differ'}")
    for line in wrong:
        print(f"  {line}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
