"""What Chopper promises of its speed, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median

from tests.programs.bench.analyses import INGEST, OPEN, SUMMARY
from tests.programs.bench.explorer import FIRST, Press, p95
from tests.programs.bench.processes import Cost
from tests.programs.bench.reading import HTA, ORIGINAL, SHARED, TABLE, TRACELENS, TYPED, Measured

Presses = Mapping[str, Sequence[tuple[float, int]]]

NOT_MEASURED = "not measured here"


@dataclass(frozen=True, slots=True)
class Budget:
    """A promise and what was found."""

    what: str
    goal: str
    found: str
    met: bool | None
    """None where it was not measured."""


HEAD = ("| what | goal | measured | met | part |", "| :-- | --: | --: | :-- | :-- |")


def row(budget: Budget, part: str) -> str:
    """A row of a markdown table, which ends with the part that measured it."""
    met = {True: "yes", False: "**no**", None: "–"}[budget.met]
    return f"| {budget.what} | {budget.goal} | {budget.found} | {met} | {part} |"


def at_most(
    what: str, most: float, found: float | None, unit: str, least: float | None = None
) -> Budget:
    """A budget that is an upper bound; `least` is what was found at best."""
    goal = f"≤ {most:,.0f} {unit}"
    if found is None:
        return Budget(what, goal, NOT_MEASURED, None)
    best = f" ({least:,.0f} at best)" if least is not None else ""
    return Budget(what, goal, f"{found:,.0f} {unit}{best}", found <= most)


def at_least(what: str, least: float, ratio: float | None) -> Budget:
    """A budget that is a lower bound of how many times as fast it is."""
    goal = f"≥ {least:.0f} ×"
    if ratio is None:
        return Budget(what, goal, NOT_MEASURED, None)
    return Budget(what, goal, f"{ratio:.1f} ×", ratio >= least)


def of_reading(found: Measured) -> Iterator[Budget]:
    """How many times as fast as others, and the memory."""
    own, two = found.costs[TABLE], found.costs[SHARED]
    for name, times in ((ORIGINAL, 6.0), (HTA, 11.0), (TRACELENS, 11.0)):
        other = found.costs.get(name)
        ratio = other and other.cpu_s / own.cpu_s
        yield at_least(f"cold ingest against {name}, one process, processor time", times, ratio)
    for name, times in ((ORIGINAL, 10.0), (HTA, 18.0), (TRACELENS, 18.0)):
        other = found.costs.get(name)
        ratio = other and other.wall_s / two.wall_s
        yield at_least(f"cold ingest against {name}, two processes, wall", times, ratio)
    ratio = own.cpu_s / found.costs[TYPED].cpu_s
    what = "time of cold ingest against msgspec's typed decoding alone"
    yield Budget(what, "≤ 1.5 ×", f"{ratio:.2f} ×", ratio <= 1.5)
    for what, cost in (("one process", own), ("two processes", two)):
        name = f"peak memory, {found.megabytes:.0f} MB trace, {what}"
        yield at_most(name, 160, cost.peak_mb, "MB")


def of_huge(found: Measured | None) -> Iterator[Budget]:
    """The memory of a trace of a gigabyte, and what a second process saves."""
    one, two = (found.costs[name] if found else None for name in (TABLE, SHARED))
    for name, cost in (("one process", one), ("two processes", two)):
        yield at_most(f"peak memory, 1 GB trace, {name}", 350, cost and cost.peak_mb, "MB")
    what = "time of two processes against one, 1 GB trace, wall"
    if not one or not two:
        yield Budget(what, "≤ 0.6 ×", NOT_MEASURED, None)
        return
    share = two.wall_s / one.wall_s
    yield Budget(what, "≤ 0.6 ×", f"{share:.2f} ×", share <= 0.6)


def of_show(costs: Sequence[Cost], imports: Sequence[Cost]) -> Iterator[Budget]:
    """Printing a view of a store, as a whole process, against what it has to import."""
    what = "`chopper show` on a store against `import numpy, msgspec`"
    for name, of in (("wall", attrgetter("wall_s")), ("processor time", attrgetter("cpu_s"))):
        found, least = (pick(map(of, costs)) / pick(map(of, imports)) for pick in (median, min))
        yield Budget(f"{what}, {name}", "≤ 2 ×", f"{found:.2f} × ({least:.2f} at best)", found <= 2)


def of_answers(answers: Mapping[str, Sequence[float]], empty: str) -> Iterator[Budget]:
    """From the start of the process to the answer of a key, against that of an empty app."""
    for title, seconds in answers.items():
        if empty in title:
            continue
        ratio, least = (pick(seconds) / pick(answers[empty]) for pick in (median, min))
        what = f"start to a key answered against an empty app's, {title}"
        yield Budget(what, "≤ 2 ×", f"{ratio:.2f} × ({least:.2f} at best)", ratio <= 2)


def of_counters(lines: Sequence[str]) -> Iterator[Budget]:
    """How fast files of counters are read; there is no goal."""
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) > 6 and cells[1].isdecimal():
            found = f"{cells[5]} MB per second of processor time, {cells[6]} MB at peak"
            yield Budget(f"counters, {cells[0]}, {cells[1]} MB", "–", found, None)


def of_paint(paints: Mapping[str, Sequence[float]], empty: str) -> Iterator[Budget]:
    """From the start of the process to the first complete screen, against an empty app's."""
    for title, seconds in paints.items():
        if empty in title:
            continue
        ratio, least = (pick(seconds) / pick(paints[empty]) for pick in (median, min))
        what = f"first complete screen of a run opened before against an empty app's, {title}"
        yield Budget(what, "≤ 1.5 ×", f"{ratio:.2f} × ({least:.2f} at best)", ratio <= 1.5)


def of_rest(rests: Mapping[str, Sequence[float]], empty: str) -> Iterator[Budget]:
    """The first complete screen with all that follows it, until the process rests, beyond an empty
    app's."""
    for title, seconds in rests.items():
        if empty in title:
            continue
        beyond, least = (1000 * (pick(seconds) - pick(rests[empty])) for pick in (median, min))
        what = f"first complete screen, until all rests, beyond an empty Textual app, {title}"
        yield at_most(what, 300, beyond, "ms", least)


def of_keys(presses: Presses, title: str) -> Iterator[Budget]:
    """From a key to a quiet screen."""
    slow = {
        name: 1000 * p95([seconds for seconds, _ in each])
        for name, each in presses.items()
        if name not in WAITS
    }
    worst = max(slow, key=lambda name: slow[name])
    every = [seconds for name, each in presses.items() if name not in WAITS for seconds, _ in each]
    least = [min(each)[0] for name, each in presses.items() if name not in WAITS]
    what = f"processor time of a key, p95 of all keys, {title}"
    yield at_most(what, 100, 1000 * p95(every), "ms", 1000 * p95(least))
    own = 1000 * min(presses[worst])[0]
    text = f"{slow[worst]:,.0f} ms ({own:,.0f} at best)"
    yield Budget(f"… of the slowest key ({worst})", "–", text, None)


def of_walk(found: Sequence[Press], title: str) -> Iterator[Budget]:
    """Keys in every view of a large run."""
    every = [each.processor_s for each in found if each.key not in FIRST]
    name = f"processor time of a key, p95 of all keys in all open views, {title}"
    yield at_most(name, 100, 1000 * p95(every), "ms")
    first = max(each.processor_s for each in found if each.key in FIRST)
    yield at_most(f"the slowest view, opened the first time, {title}", 300, 1000 * first, "ms")


def of_bytes(small: Presses, wide: Presses, idle: int) -> Iterator[Budget]:
    """What a cursor move and a page send, and nothing."""
    for what, presses, key, most in (
        ("cursor move, 80×24", small, "cursor down", 600),
        ("page, 80×24", small, "page down", 6_000),
        ("page, 200×60", wide, "page down", 16_000),
    ):
        sent = median(count for _, count in presses[key])
        yield at_most(f"bytes: {what}", most, sent, "B")
    yield at_most("bytes: idle for a second", 0, idle, "B")


WAITS = ("filter, taken back", "close the hits")
"""Keys that begin as others do: after an escape, the terminal's next byte is waited for."""


def of_ranks(
    steps: Mapping[str, float], views: Mapping[str, tuple[float, float]], title: str
) -> Iterator[Budget]:
    """A run of very many ranks, in the core."""
    yield at_most(f"{title}: open", 50, steps["open"], "ms")
    yield at_most(f"{title}: one step of one rank", 10, steps["drill to phase"], "ms")
    yield _slowest(views, 2_000, title)


def _slowest(views: Mapping[str, tuple[float, float]], most_ms: float, title: str) -> Budget:
    slowest = max((name for name in views if name != INGEST), key=lambda name: views[name][0])
    what = f"{title}: the slowest view, first after an ingest, processor time ({slowest})"
    return at_most(what, most_ms, views[slowest][0], "ms")


def of_writers(
    costs: Sequence[Cost], wall_s: float, finished: Cost, merged: int
) -> Iterator[Budget]:
    """Jobs that each read a rank into one store at the same time, and the merge; no goal."""
    what = f"{len(costs)} jobs at once, a rank each into one store"
    each_s = median(cost.cpu_s for cost in costs)
    total_s = sum(cost.cpu_s for cost in costs)
    text = f"{total_s:.1f} s of processor time, {each_s:.2f} s each, {wall_s:.1f} s wall"
    yield Budget(f"{what}: read", "–", text, None)
    text = f"{finished.cpu_s:.1f} s of processor time, {finished.wall_s:.1f} s wall"
    yield Budget(f"{what}: merge", "–", text, None)
    yield Budget(f"{what}: ranks merged", f"{len(costs)}", f"{merged}", merged == len(costs))


def of_most(
    views: Mapping[str, tuple[float, float]], presses: Presses, title: str
) -> Iterator[Budget]:
    """A run of ten times as many ranks: its views in the core, and its keys."""
    yield at_most(f"{title}: open", 100, views[OPEN][0], "ms")
    worked_out = f"{views[INGEST][0]:,.0f} ms"
    what = f"{title}: all views, worked out by ingest"
    yield Budget(what, "–", worked_out, None)
    yield at_most(f"{title}: the summary after an ingest", 300, views[SUMMARY][0], "ms")
    yield _slowest(views, 3_000, title)
    # The first press of each opens a view.
    every = [seconds for _, *again in presses.values() for seconds, _ in again]
    what = f"{title}: processor time of a key in open views, p95"
    yield at_most(what, 100, 1000 * p95(every), "ms")
