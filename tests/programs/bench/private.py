"""Explorers side by side on one store: the memory that each has for itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from chopper_core.views import VIEWS
from tests.programs.bench.budgets import Budget, at_most
from tests.programs.bench.explorer import KEPT_AFTER_S, Case, first_paint, opened

EXPLORERS = 20
_SIZE = (80, 24)
_MOST_MB = 120
_AT_REST_S = 22.0
"""Without a key: then what was worked out of the run is left to others, too."""
_WALKED = 3
"""Explorers in which all views are seen."""
_TURNS = max(Counter(tab.place for tab in VIEWS.values()).values())
"""Times that each digit is pressed: as many as open views in turn."""


def private_mb(process: int) -> float:
    """The memory of a process that no other process shares, in 10^6 bytes."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(each.split()[1]) for each in lines if each.startswith("Private")) * 1024 / 1e6


def measure(case: Case, explorers: int = EXPLORERS) -> tuple[list[float], list[float]]:
    """The private memory of each explorer once all are open, and of some after all views."""
    first_paint(case, _SIZE, KEPT_AFTER_S)
    with ExitStack() as stack:
        terminals = [stack.enter_context(opened(case, _SIZE)) for _ in range(explorers)]
        for each in terminals:
            each.until(lambda each=each: case.is_complete(each))
        # The others have kept what the next can recall once the last has.
        for each in reversed(terminals):
            each.quiet(KEPT_AFTER_S if each is terminals[-1] else 0.0)
        at_first = [private_mb(each.process.pid) for each in terminals]
        for each in terminals[:_WALKED]:
            for digit in "1234567890":
                for _ in range(_TURNS):
                    each.send(digit)
                    each.quiet(0.3)
            each.quiet(_AT_REST_S)
        return at_first, [private_mb(each.process.pid) for each in terminals[:_WALKED]]


def report(case: Case, found: tuple[list[float], list[float]]) -> Iterator[str]:
    """A line per state."""
    yield (
        f"{len(found[0])} explorers at once, {case.title}; what `smaps_rollup` counts as private:"
    )
    yield ""
    for when, values in zip(
        ("open", f"{_WALKED} of them after {_TURNS} turns of each digit"), found, strict=True
    ):
        yield f"- {when}: {median(values):.0f} MB each, {max(values):.0f} MB at most"


def budget(found: tuple[list[float], list[float]], title: str) -> Budget:
    """The most that one takes after all views were seen."""
    what = f"private memory of an explorer after all views, {title}"
    return at_most(what, _MOST_MB, max(found[1]), "MB")
