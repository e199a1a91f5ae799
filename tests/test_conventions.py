"""Conventions that a linter cannot see: frozen values stay as they are, lazy imports keep to the layers, tests mirror
the package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import headway.methods

PACKAGE = Path(headway.methods.__file__).parents[1]
TESTS = Path(__file__).parent
CHANGES = {  # methods that change a list, dict or set
    "append", "extend", "insert", "remove", "pop", "popitem", "clear", "sort", "reverse", "update", "setdefault", "add",
    "discard",
}  # fmt: skip


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, ast.parse(path.read_text())


# ---- values


def is_frozen_dataclass(node: ast.AST) -> bool:
    calls = [d for d in getattr(node, "decorator_list", []) if isinstance(d, ast.Call)]
    return isinstance(node, ast.ClassDef) and any(
        getattr(call.func, "id", "") == "dataclass"
        and any(k.arg == "frozen" and getattr(k.value, "value", False) for k in call.keywords)
        for call in calls
    )


def frozen_classes(tree: ast.Module) -> set[str]:
    return {node.name for node in ast.walk(tree) if is_frozen_dataclass(node)}


def changed(tree: ast.Module, frozen: set[str]) -> Iterator[str]:
    """Where a function changes what hangs on a frozen value: on `self`, or on an argument annotated with its class."""
    for owner in ast.walk(tree):
        inside = is_frozen_dataclass(owner)
        for function in (n for n in ast.iter_child_nodes(owner) if isinstance(n, ast.FunctionDef)):
            arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            values = {a.arg for a in arguments if a.annotation and ast.unparse(a.annotation) in frozen}
            if inside and arguments and arguments[0].arg == "self":
                values.add("self")
            for node in ast.walk(function):
                if (target := change(node)) is not None and root(target) in values:
                    yield f"{node.lineno}: {ast.unparse(node)}"


def change(node: ast.AST) -> ast.AST | None:
    """What a statement changes in place: x.y of `x.y[k] = v`, `del x.y[k]`, `x.y.append(v)` and `x.y = v`."""
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
        targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
        places = [t.value if isinstance(t, ast.Subscript) else t for t in targets]
        return next((p for p in places if isinstance(p, ast.Attribute)), None)
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(called, ast.Attribute) and called.attr in CHANGES and isinstance(called.value, ast.Attribute):
        return called.value
    return None


def root(node: ast.AST) -> str:
    """x of x.y: the name of the value whose own attribute is changed; of x.net.y, which is a net's, nothing."""
    return node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""


def test_nothing_changes_a_frozen_value():
    known = set().union(*(frozen_classes(tree) for _, tree in trees()))
    found = [f"{path.relative_to(PACKAGE)}:{where}" for path, tree in trees() for where in changed(tree, known)]
    assert not found


@pytest.mark.parametrize(
    "line", ["self.seen.append(1)", "self.seen[0] = 1", "del self.seen[0]", "self.seen = []", "self.seen += [1]"]
)
def test_the_search_finds_a_changed_value(line):
    code = f"@dataclass(frozen=True)\nclass V:\n    seen: list\n    def f(self):\n        {line}\n"
    assert len(list(changed(ast.parse(code), {"V"}))) == 1
    outside = code.replace("    def f(self)", "def f(v: V)").replace("self.", "v.").replace("        v", "    v")
    assert len(list(changed(ast.parse(outside), {"V"}))) == 1
    assert not list(changed(ast.parse(code.replace("frozen=True", "frozen=False")), set()))


# ---- layers: an import by name is an import


def lazy_modules(tree: ast.Module) -> set[str]:
    """The modules of headway that the file imports at their first use, by LazyModule or importlib."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and n.args]
    names = [n for n in calls if ast.unparse(n.func).rpartition(".")[2] in ("LazyModule", "import_module")]
    texts = [n.args[0].value for n in names if isinstance(n.args[0], ast.Constant)]
    return {t for t in texts if isinstance(t, str) and t.split(".")[0] == "headway"}


def unreadable_lazy_modules(tree: ast.Module) -> list[int]:
    """Lines with a LazyModule whose name is not written out, so that no search can find it."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "LazyModule"]
    return [n.lineno for n in calls if not (n.args and isinstance(n.args[0], ast.Constant))]


def imported(tree: ast.Module) -> set[str]:
    froms = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    whole = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    return whole | {n.module or "" for n in froms} | {f"{n.module}.{a.name}" for n in froms for a in n.names}


def test_what_is_imported_at_its_first_use_is_imported_for_the_type_checker_too():
    """So that the linter of imports, which sees statements alone, judges it."""
    found = {str(path.relative_to(PACKAGE)): lazy_modules(tree) - imported(tree) for path, tree in trees()}
    assert not {path: names for path, names in found.items() if names}
    assert not {path.name: lines for path, tree in trees() if (lines := unreadable_lazy_modules(tree))}
    assert unreadable_lazy_modules(ast.parse('x = [LazyModule(n) for n in ("headway.cli.app",)]')) == [1]
    assert lazy_modules(ast.parse('x = LazyModule("headway.runs.runner")')) == {"headway.runs.runner"}


# ---- tests


def test_tests_stand_in_the_folders_of_the_package():
    folders = {p.relative_to(PACKAGE) for p in PACKAGE.rglob("*") if p.is_dir()}
    own = {Path("helpers"), Path("laws")}
    theirs = {p.parent.relative_to(TESTS) for p in TESTS.rglob("test_*.py")} - {Path()}
    assert not theirs - folders - own


def test_no_test_file_is_past_400_lines():
    sizes = {p.name: len(p.read_text().splitlines()) for p in TESTS.rglob("*.py")}
    assert not {name: size for name, size in sizes.items() if size > 400}
