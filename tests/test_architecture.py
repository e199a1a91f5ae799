"""The shape of the package: folders, layers, what a core may know of methods, hooks, declared imports.

`make lint` holds the layers (import-linter, `[tool.importlinter]` in pyproject.toml); here stands what a linter of
imports cannot see. docs/architecture.md explains the rules.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any
from unittest.mock import MagicMock

import pytest
from torch import nn

import headway.methods
import headway.methods.parts as methods_parts
from headway.analysis.report import background
from headway.core.piece import HOOKS, Piece
from headway.core.recipe import Recipe
from headway.methods import REGISTRY
from headway.models.head_kinds import CLASS_VECTORS, HEAD_KINDS

PACKAGE = Path(headway.methods.__file__).parents[1]
ROOT = PACKAGE.parent
PROJECT = ROOT / "pyproject.toml"
KNOW_NO_METHOD = ("base", "core", "models", "data", "training", "engines", "runs", "metrics", "cli")
FOLDERS = sorted(p.parent for p in PACKAGE.rglob("__init__.py") if p.parent != PACKAGE)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def sources(*folders: str) -> list[Path]:
    return sorted(f for folder in folders or ("",) for f in (PACKAGE / folder).rglob("*.py"))


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"


# ---- folders


def test_no_module_stands_loose_at_the_top():
    assert {p.stem for p in PACKAGE.glob("*.py")} == {"__init__", "__main__", "api"}


def test_every_folder_with_code_is_a_package():
    assert {p.parent for p in sources()} == {*FOLDERS, PACKAGE}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_folder_says_what_lives_there_and_what_it_may_import(folder):
    doc = inspect.cleandoc(ast.get_docstring(parsed(folder / "__init__.py")) or "")
    assert 2 <= len(doc.splitlines()) <= 5


def test_no_file_is_past_400_lines():
    long = {str(f.relative_to(PACKAGE)): n for f in sources() if (n := len(f.read_text().splitlines())) > 400}
    assert not long


# ---- imports


def is_headway(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.level > 0 or (node.module or "").split(".")[0] == "headway"
    return isinstance(node, ast.Import) and any(a.name.split(".")[0] == "headway" for a in node.names)


def test_at_most_twenty_imports_of_headway_stand_inside_functions():
    found = {
        place(path, node)
        for path in sources()
        for function in ast.walk(parsed(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if is_headway(node)
    }
    assert len(found) <= 20, sorted(found)


def test_exceptions_from_the_layers_are_ten_at_most_and_each_has_its_reason():
    (contract,) = tomllib.loads(PROJECT.read_text())["tool"]["importlinter"]["contracts"]
    exceptions = contract.get("ignore_imports", [])
    assert len(exceptions) <= 10
    lines = PROJECT.read_text().splitlines()
    for exception in exceptions:
        (line,) = [line for line in lines if f'"{exception}"' in line]
        assert re.search(r'",?\s+# \w.{10,}', line), f"{exception} has no reason beside it"


def test_a_recipe_can_be_read_and_runs_be_listed_without_torch():
    modules = "headway.base, headway.core, headway.methods, headway.runs.search, headway.training.settings"
    code = f"import {modules}, sys; sys.exit('torch was imported' if 'torch' in sys.modules else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "fontTools": "fonttools", "mlflow": "mlflow-skinny"}


def third_party(paths: list[Path]) -> set[str]:
    """The distributions that these files import; a tracker of torch's is the distribution it writes with."""
    names = set()
    for path in paths:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module)
            elif isinstance(node, ast.Import):
                names |= {a.name for a in node.names}
    own = {"headway"} | {p.stem for p in (ROOT / "tests").rglob("*.py")}
    roots = {n.split(".")[0] for n in names} - set(sys.stdlib_module_names) - own
    return {DISTRIBUTIONS.get(root, root) for root in roots}


def declared(requirements: list[str]) -> set[str]:
    return {re.match(r"[A-Za-z0-9_.-]+", r)[0].lower() for r in requirements} - {"headway"}


def test_what_is_imported_is_declared_and_an_extra_has_code_behind_it():
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = {name: declared(of) for name, of in project["optional-dependencies"].items()}
    running, all_of_them = declared(project["dependencies"]), set().union(*extras.values())
    imported = third_party(sources())
    assert imported <= running | (all_of_them - extras["dev"])
    assert running <= imported
    assert third_party(list((ROOT / "tests").rglob("*.py"))) <= running | all_of_them
    assert not [name for name, of in extras.items() if name != "dev" and not of & imported]


def test_the_version_is_the_same_everywhere():
    assert tomllib.loads(PROJECT.read_text())["project"]["version"] == headway.__version__


# ---- the core knows no method
#
# In the folders KNOW_NO_METHOD the code names no method. Looked for, in all code but docstrings and comments:
#   1. a text constant that is a piece's name, an alias, a kind of head, or a whole recipe ("fedavg+ccvr");
#   2. the class of a piece or of a head that a method brings, and an import of a method's module;
#   3. a setting of a piece, as text, attribute or keyword.
# A sentence for a reader is no code: help may say "such as scaffold+fn". In base and core, sentences name a method only
# after "such as". Words that mean something else in the core too (ORDINARY) count only where they name a piece: in
# `.piece("local")`, beside `.name`, in getattr. What must stay is in ALLOWED, with its reason.

ORDINARY_NAMES = {"all", "balanced", "body", "ce", "head", "linear", "local", "personal"}
ORDINARY_SETTINGS = {
    "absent", "alpha", "average", "collect", "dampening", "epochs", "eps", "factor", "loss", "lr", "momentum", "order",
    "overwrite", "per_class", "power", "predict", "project", "pull", "scale", "steps", "temperature", "weight",
}  # fmt: skip
ORDINARY_CHOICES = {"nearest"}  # a mode of interpolation
ORDINARY_CLASSES = {"Linear"}  # torch.nn's
ALLOWED = {
    ("core/recipe.py", "fedavg"): "every hook's default is FedAvg's, and a recipe without a base is FedAvg",
    ("cli/calibrate.py", "ccvr"): "the example in a message about --with",
    ("cli/personalise.py", "ft"): "the example in a message about --with",
    ("runs/posthoc.py", "oracle"): "a key of calibrated/*.json, the accuracy after retraining on real features",
    ("cli/calibrate.py", "oracle"): "the same key, printed",
}


def method_modules() -> list[Any]:
    others = ("guide", "plugins", "references")  # they are about methods and hold none
    names = [m.name for m in iter_modules(headway.methods.__path__) if m.name not in others]
    return [import_module(f"headway.methods.{name}") for name in names]


@cache
def method_names() -> frozenset[str]:
    return frozenset({p.name for p in pieces()} | set(REGISTRY.aliases))


def pieces() -> list[type[Piece]]:
    return [c for m in method_modules() for c in vars(m).values()
            if inspect.isclass(c) and issubclass(c, Piece) and c.__module__ == m.__name__]  # fmt: skip


@cache
def method_settings() -> frozenset[str]:
    return frozenset(f.name for p in pieces() for f in fields(p))


@cache
def method_classes() -> frozenset[str]:
    """The classes of pieces, and of the heads that methods bring."""
    return frozenset(n for m in (*method_modules(), *part_modules()) for n, c in vars(m).items()
                     if inspect.isclass(c) and c.__module__ == m.__name__
                     and (m in method_modules() or issubclass(c, nn.Module))) - ORDINARY_CLASSES  # fmt: skip


def part_modules() -> list[Any]:
    return [import_module(f"headway.methods.parts.{m.name}") for m in iter_modules(methods_parts.__path__)]


@cache
def head_choices() -> frozenset[str]:
    """The kinds of heads and of class vectors that methods bring."""
    kinds = {name: kind.make for table in (HEAD_KINDS, CLASS_VECTORS) for name, kind in table.items()}
    return (
        frozenset(name for name, make in kinds.items() if make.__module__.startswith("headway.methods"))
        - ORDINARY_CHOICES
    )


@cache
def piece_modules() -> frozenset[str]:
    return frozenset({p.__module__ for p in pieces()} | {m.__name__ for m in part_modules()})


def prose(tree: ast.Module) -> set[int]:
    """The ids of the docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    first = [n.body[0] for n in ast.walk(tree) if isinstance(n, documented) and n.body]
    return {id(s.value) for s in first if isinstance(s, ast.Expr)}


def recipe_names(text: str) -> set[str]:
    """The names in a text that is a whole recipe, such as `fedavg+ccvr(per_class=5)`; of another text none."""
    terms = re.sub(r"\([^()]*\)", "", text).split("+")
    return set(terms) if set(terms) <= method_names() else set()


def named_in(path: Path, tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """What of a method this file names, and where."""
    docs = prose(tree)
    sentences = path.relative_to(PACKAGE).parts[0] in ("base", "core")
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            for name in (recipe_names(node.value) - ORDINARY_NAMES) | (
                {node.value} & ((method_settings() - ORDINARY_SETTINGS) | head_choices())
            ):
                yield name, node
            if sentences and " " in node.value:
                told = node.value.split("such as")[0].lower()
                for name in set(re.findall(r"[a-z0-9_-]+", told)) & (method_names() - ORDINARY_NAMES):
                    yield name, node
        elif isinstance(node, ast.Call):
            yield from ((name, node) for name in asked_by_name(node))
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(isinstance(s, ast.Attribute) and s.attr in ("name", "names") for s in sides):
                texts = {c.value for s in sides for c in ast.walk(s) if isinstance(c, ast.Constant)}
                yield from ((name, node) for name in texts & method_names() & ORDINARY_NAMES)
        elif isinstance(node, ast.ImportFrom):
            modules = {node.module or ""} | {f"{node.module}.{a.name}" for a in node.names}
            yield from ((module, node) for module in modules & piece_modules())
        words = {getattr(node, part, None) for part in ("id", "attr", "name")}
        yield from ((name, node) for name in words & method_classes())
        used = {getattr(node, part, None) for part in ("attr", "arg")} if not isinstance(node, ast.arg) else set()
        yield from ((name, node) for name in used & (method_settings() - ORDINARY_SETTINGS))


def asked_by_name(call: ast.Call) -> set[str]:
    """The method or setting that `recipe.piece("local")` or `getattr(piece, "space")` asks for."""
    texts = {a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    if isinstance(call.func, ast.Attribute) and call.func.attr == "piece":
        return texts & ORDINARY_NAMES
    if isinstance(call.func, ast.Name) and call.func.id in ("getattr", "hasattr"):
        return texts & method_settings() & ORDINARY_SETTINGS
    return set()


def test_the_core_knows_no_method():
    found = {}
    for path in sources(*KNOW_NO_METHOD):
        for name, node in named_in(path, parsed(path)):
            found.setdefault((path.relative_to(PACKAGE).as_posix(), name), place(path, node))
    assert not {at: name for (_, name), at in found.items() if (at.split(":")[0], name) not in ALLOWED}
    assert ALLOWED.keys() <= found.keys(), "an exception that nothing needs any more"


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ('p = recipe.piece("local")', {"local"}),
        ('if p.name == "alternate": pass', {"alternate"}),
        ('if p.name != "linear": pass', {"linear"}),
        ('if p.name in ("gmv", "all"): pass', {"gmv", "all"}),
        ('kind = "fedavg+ccvr(per_class=5)"', {"fedavg", "ccvr"}),
        ('q = getattr(p, "space", "")', {"space"}),
        ("q = p.replace_head", {"replace_head"}),
        ("q = build(replace_head=True)", {"replace_head"}),
        ("from headway.methods.gmv import GMV", {"headway.methods.gmv", "GMV"}),
        ("ok = isinstance(p, GMV)", {"GMV"}),
        ("from headway.methods.parts.hyper_head import HyperHead", {"headway.methods.parts.hyper_head", "HyperHead"}),
        ('ok = kind == "hyper"', {"hyper"}),
        ("q = p.gamma", {"gamma"}),
        ('"""GMV adds the mean: gmv."""', set()),
        ('help = "a recipe, such as scaffold+fn"', set()),
        ('engine = "local"; layer = nn.Linear(1, 1)', set()),
        ('raise ValueError("the recipe does not calibrate; add ccvr")', {"ccvr"}),
    ],
)
def test_the_search_for_methods_finds_them(code, names):
    assert {name for name, _ in named_in(PACKAGE / "core" / "recipe.py", ast.parse(code))} == names


# ---- hooks


def public_names() -> list[str]:
    annotated = inspect.get_annotations(Piece)
    return sorted(n for n in {*vars(Piece), *annotated} if not n.startswith("_"))


def test_a_piece_has_28_names_to_learn_at_most():
    names = public_names()
    assert len(names) <= 28, names


def test_every_method_of_a_piece_is_a_hook_with_a_fold_and_a_line_of_documentation():
    methods = {n for n in public_names() if inspect.isfunction(vars(Piece).get(n))}
    assert methods == set(HOOKS)
    assert set(HOOKS.values()) <= {"one", "chain", "total", "merge", "own", "union"}
    assert not [hook for hook in HOOKS if not (vars(Piece)[hook].__doc__ or "").strip()]


def test_a_hook_has_its_stage_in_the_report():
    assert set(background.STAGES) >= {hook for hook, fold in HOOKS.items() if fold != "union"}


class Asked(Exception):
    """A piece's hook was reached."""


def asking(hook: str) -> Callable[..., Any]:
    def answer(self: Piece, *args: Any, **given: Any) -> Any:
        raise Asked(hook)

    return answer


@pytest.mark.parametrize("hook", list(HOOKS))
def test_a_recipe_asks_its_pieces_at_every_hook(hook):
    probe = type("Probe", (Piece,), {"name": "probe", "slot": "reg", hook: asking(hook)})
    given = list(inspect.signature(getattr(Piece, hook)).parameters)[1:]
    with pytest.raises(Asked):
        getattr(Recipe((probe(),)), hook)(*(MagicMock() for _ in given))


# ---- documentation

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def defined(path: Path) -> set[str]:
    """The functions, classes and methods of a file, a method as Class.name."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    top = [node for node in parsed(path).body if isinstance(node, kinds)]
    inner = {f"{c.name}.{m.name}" for c in top if isinstance(c, ast.ClassDef) for m in c.body if isinstance(m, kinds)}
    return {node.name for node in top} | inner


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_a_page_names_exist(page):
    text = page.read_text()
    named = set(re.findall(r"`((?:headway|bench|tests|docs)/[\w./-]+)`", text)) - {"bench/history.jsonl"}
    linked = set(re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text))
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing + [link for link in linked if not (page.parent / link).exists()]


def test_the_walks_of_the_architecture_name_real_functions():
    rows = re.findall(r"^\|[^|]*\| `(headway/\S+\.py)` \| ((?:`[\w.]+`(?:, )?)+) \|", ARCHITECTURE, re.MULTILINE)
    assert len(rows) > 15
    named = [(file, name) for file, names in rows for name in re.findall(r"`([\w.]+)`", names)]
    assert not [(file, name) for file, name in named if name not in defined(ROOT / file)]


def test_the_layers_drawn_are_the_layers_checked():
    (contract,) = tomllib.loads(PROJECT.read_text())["tool"]["importlinter"]["contracts"]
    checked = {name for layer in contract["layers"] for name in re.findall(r"\w+", layer)} - {"api"}
    assert set(re.findall(r"^\| `headway/(\w+)` \|", ARCHITECTURE, re.MULTILINE)) == checked
    assert {p.name for p in FOLDERS if p.parent == PACKAGE} == checked
