"""Letters in figures: fonts of this machine that have them, and the number of a class whose name no font can write."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache

Letters = frozenset[str]
PREFERRED = ("Noto Sans CJK", "Noto Sans", "Source Han Sans", "WenQuanYi", "Droid Sans Fallback", "DejaVu")
BOXES = "Last Resort"  # matplotlib's own: it has every letter, as a box
REGULAR = (400, "normal", "regular", "book")


@dataclass(frozen=True)
class Lettering:
    """What can be written in the figure that is being drawn."""

    fonts: tuple[str, ...] = ()  # beside the usual one
    known: Letters | None = None  # all letters of all fonts; None: not looked up
    numbers: Mapping[str, str] = field(default_factory=dict)  # a name that cannot be written -> its class number


CURRENT: ContextVar[Lettering] = ContextVar("lettering", default=Lettering())  # noqa: B039  frozen, never changed


@contextmanager
def lettering(names: Sequence[str]) -> Iterator[None]:
    """Figures drawn inside fall back to fonts that have the letters of these class names."""
    import matplotlib

    chosen = lettering_of(tuple(names))
    token = CURRENT.set(chosen)
    try:
        with matplotlib.rc_context({"font.family": [*matplotlib.rcParams["font.family"], *chosen.fonts]}):
            yield
    finally:
        CURRENT.reset(token)


def written(name: str) -> str:
    """A class name as the current figure can show it: itself, or its number."""
    return CURRENT.get().numbers.get(name, name)


def without_boxes(text: str) -> str:
    """Any other text, with ? for the letters that no font has."""
    known = CURRENT.get().known
    return text if known is None else "".join(c if writable(c, known) else "?" for c in text)


def writable(letter: str, known: Letters) -> bool:
    return letter in known or letter.isspace() or not letter.isprintable()  # what cannot be printed is never drawn


@cache
def lettering_of(names: tuple[str, ...]) -> Lettering:
    """The fonts that these names need; a warning, once, where some have letters that no font here has."""
    known = usual_letters()
    missing = {c for name in names for c in name if not writable(c, known)}
    fonts: list[str] = []
    for font, file in installed() if missing else ():
        if more := missing & (letters := letters_of(file)):
            fonts.append(font)
            known |= letters
            missing -= more
        if not missing:
            break
    numbers = {name: str(c) for c, name in enumerate(names) if missing.intersection(name)}
    if numbers:
        first = "".join(c if c.isprintable() else " " for c in next(iter(numbers)))
        print(
            f"headway: warning: no font of this machine can write {len(numbers)} of {len(names)} class names, such as "
            f"{first[:40]}, so figures show their numbers; install one that can, such as Noto Sans",
            file=sys.stderr,
        )
    return Lettering(tuple(fonts), known, numbers)


@cache
def usual_letters() -> Letters:
    from matplotlib.font_manager import FontProperties, findfont

    return letters_of(findfont(FontProperties()))


def installed() -> list[tuple[str, str]]:
    """Names and files of the upright fonts of usual weight here, those with many scripts first."""
    from matplotlib.font_manager import fontManager

    files: dict[str, str] = {}
    for font in fontManager.ttflist:
        if font.style == "normal" and font.weight in REGULAR and not font.name.startswith(BOXES):
            files.setdefault(font.name, font.fname)

    def rank(name: str) -> tuple[int, str]:
        return next((i for i, start in enumerate(PREFERRED) if name.startswith(start)), len(PREFERRED)), name

    return [(name, files[name]) for name in sorted(files, key=rank)]


@cache
def letters_of(file: str) -> Letters:
    """The letters a font can write; none where the file is gone or of no use to the plotter."""
    from matplotlib.font_manager import get_font

    with suppress(OSError, RuntimeError, ValueError):
        return frozenset(map(chr, get_font(file).get_charmap()))
    return frozenset()
