"""The explorer in a pseudo-terminal: its first complete screen, time and bytes of keys."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Final

from chopper_core.views import VIEWS
from chopper_tui.steps import LOADING
from tests.programs.bench.processes import CHOPPER, ROOT
from tests.programs.bench.runs import LARGE, ingested, store_of
from tests.tui.terminal_harness import Terminal

KEPT_AFTER_S: Final = 2.0
"""Seconds of quiet after which a first screen is kept."""
_REST_OF_PAINT_S: Final = 0.005
"""A screen may be complete before the last of its cells are there."""
QUIET_S = 0.06
"""A screen is quiet when nothing has come for this long; it is not counted as latency."""
SIZES: tuple[tuple[int, int], tuple[int, int]] = ((80, 24), (200, 60))


_COMPLETE: Final = "costs, saves"
"""Stands above the findings of an overview once they are there."""
_ROWS_STAND: Final = re.compile(r"\d+ of \d+ rows")
_MOST_LANES: Final = 64
"""GPUs of which each has a row; those of more are in rows of their nodes."""
_LANE: Final = re.compile(r"^[\s│▌]*\d+ .*[▀-█]{20} *│? *$")


@dataclass(frozen=True, slots=True)
class Case:
    """What is opened, what the screen shows when it is there, and the keys to press in turn."""

    title: str
    command: tuple[str, ...]
    shown: str
    keys: tuple[tuple[str, str], ...]
    lanes: int = 0
    """Rows of the table that end with a lane."""

    def is_complete(self, terminal: Terminal) -> bool:
        """Whether every part of the first screen is filled."""
        lines = terminal.text.splitlines()
        lanes = sum(_LANE.search(line) is not None for line in lines)
        return any(self.shown in line for line in lines) and lanes >= self.lanes


_ROWS = (
    ("cursor down", "j"),
    ("cursor up", "k"),
    ("page down", "\x1b[6~"),
    ("page up", "\x1b[5~"),
)
_STEPS = (
    ("sort by the next column", "."),
    ("reverse the order", "r"),
    ("sort by the column before", ","),
    ("drill: into the row", "\r"),
    ("up again", "h"),
    ("filter, first character", "/2"),
    ("filter, next character", "1"),
    ("filter, taken back", "\x1b"),
    ("pivot: choose", "p"),
    ("pivot: by operation", "operation\r"),
    ("drill in the pivot", "\r"),
    ("back from the pivot", "H"),
    ("the view before", ":go {start}\r"),
    ("next signal", "M"),
)
_TIMELINE = (
    ("timeline: open", "2"),
    ("timeline: zoom in", "+"),
    ("timeline: zoom in further", "+"),
    ("timeline: zoom out", "-"),
    ("timeline: back to the tree", "1"),
)
_FIND = (("find a name", "fmlp_up\r"), ("close the hits", "\x1b"))


def demo() -> Case:
    """The demo run, as `chopper demo` shows it."""
    address = str(ROOT / "demo_data" / "fsdp2")
    keys = (*_ROWS[:2], ("the tree", "1"), *_ENTER)
    return Case("demo run", (*CHOPPER, address), _COMPLETE, keys, lanes=5)


def empty(*modules: str) -> Case:
    """A Textual app with a line of text that a key changes, after imports: no explorer in Textual
    goes below."""
    code = (
        f"import {', '.join(('sys', *modules))}\n"
        "from textual.app import App\n"
        "from textual.widgets import Static\n"
        "class Empty(App):\n"
        "    BINDINGS = [('j', 'down', 'Down')]\n"
        "    def compose(self):\n"
        "        yield Static('1 of 1 rows')\n"
        "    def action_down(self):\n"
        "        self.query_one(Static).update('2 of 2 rows')\n"
        "Empty(ansi_color=True).run()\n"
    )
    title = " ".join(("an empty Textual app", *(("with", ", ".join(modules)) if modules else ())))
    return Case(title, (sys.executable, "-c", code), "1 of 1 rows", ())


def pages() -> Case:
    """A table of 200 layers with telemetry, held in memory: more rows than a screen has."""
    command = (sys.executable, "-m", "tests.tui.pty_app", "large-measured-restless")
    return Case("200 layers", command, "200 of 200 rows", _ROWS)


_ENTER = (("drill: into the row", "\r"), ("up again", "h"))


def large(ranks: int = LARGE[0], kernels: int = LARGE[1]) -> Case:
    """An iteration's phase in a large store: layers, and everything that leads away from them."""
    store = store_of(ranks, kernels, parts=True)
    start = f"{store}:gpu=3/iteration=2/phase=backward"
    keys = tuple(
        (name, key.format(start=start)) for name, key in (*_ROWS, *_STEPS, *_TIMELINE, *_FIND)
    )
    title = f"{ranks:,} × {kernels:,} kernels"
    return Case(title, (*CHOPPER, start), "32 of 32 rows", keys)


def first_screen(ranks: int, kernels: int) -> Case:
    """The first screen of a large store: its overview."""
    store = str(ingested(ranks, kernels))
    return Case(
        f"{ranks:,} × {kernels:,} kernels",
        (*CHOPPER, store),
        _COMPLETE,
        (),
        lanes=min(ranks, 5) if ranks <= _MOST_LANES else 0,
    )


_OVER_RANKS = (
    ("the tree", "1"),
    ("overview: cursor down", "j"),
    ("overview: page down", "\x1b[6~"),
    ("one rank", "\r"),
    ("one iteration of it", "\r"),
    ("its kernels", "3"),
    ("back to the tree", "1"),
    ("back to the overview", ":go {start}\r"),
    ("any rank: its number", ":go {start}:gpu=517\r"),
    ("all ranks again", "h"),
    ("overheads", "4"),
    ("kernels of all", "3"),
    ("ranks", "5"),
    ("ranks: page down", "\x1b[6~"),
    ("ranks, by node", ":by node\r"),
    ("a node's ranks", "\r"),
    ("heat map", ":go {start}?view=heatmap\r"),
    ("heat map, by kernel", ":by kernel\r"),
    ("timeline", "2"),
    ("the overview again", ":go {start}\r"),
)


def many(ranks: int, kernels: int) -> Case:
    """The overview of very many ranks and what leads on from it."""
    store = str(ingested(ranks, kernels))
    keys = tuple((name, key.format(start=store)) for name, key in _OVER_RANKS)
    title = f"{ranks:,} ranks × {kernels:,} kernels"
    return Case(title, (*CHOPPER, store), _COMPLETE, keys)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one case took at one size."""

    title: str
    size: tuple[int, int]
    paints: list[float]
    """Seconds from the start of a process to the first complete screen."""
    presses: dict[str, list[tuple[float, int]]]
    """Seconds and bytes of each press of each key."""
    idle: int
    """Bytes of a second without a key."""


def seen(case: Case, size: tuple[int, int], rounds: int) -> Seen:
    """Measure a case."""
    first_paint(case, size, KEPT_AFTER_S)  # for the next time
    paints = sorted(first_paint(case, size) for _ in range(rounds))
    presses, idle = pressed(case, size, rounds)
    return Seen(case.title, size, paints, presses, idle)


def report(every: Iterable[Seen]) -> Iterator[str]:
    """The lines of a markdown table per case and size."""
    for each in every:
        yield from _table(each)
        yield ""


def _table(found: Seen) -> Iterator[str]:
    width, height = found.size
    paints = [1000 * each for each in found.paints]
    first = ": first complete screen {:.0f} ms after the start of the process, {:.0f} at best"
    paint = first.format(median(paints), paints[0]) if paints else ""
    yield f"**{found.title}, {width}×{height}**{paint}"
    yield ""
    yield "| key | least ms | median ms | p95 ms | bytes, median | bytes, most |"
    yield "| :-- | --: | --: | --: | --: | --: |"
    for name, presses in found.presses.items():
        times = [seconds * 1000 for seconds, _ in presses]
        sent = [count for _, count in presses]
        yield (
            f"| {name} | {min(times):.0f} | {median(times):.0f} | {p95(times):.0f} "
            f"| {median(sent):.0f} "
            f"| {max(sent)} |"
        )
    yield f"| nothing, for 1 s | | | | {found.idle} | {found.idle} |"


def p95(values: list[float]) -> float:
    """The 95th percentile."""
    return quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


def first_paint(case: Case, size: tuple[int, int], rest_s: float = 0.0) -> float:
    """Processor seconds from the start of the process to the first complete screen; it is left
    after a rest, in which what takes long is kept for the next start."""
    with opened(case, size) as terminal:
        terminal.until(lambda: case.is_complete(terminal))
        found = terminal.processor_s()
        if rest_s:
            terminal.rest()
            terminal.quiet(rest_s)
        return found


def start(case: Case, size: tuple[int, int]) -> tuple[float, float]:
    """Processor seconds from the start of the process to the first complete screen, and until all
    that follows it is done."""
    with opened(case, size) as terminal:
        terminal.until(lambda: case.is_complete(terminal))
        paint = terminal.processor_s()
        terminal.rest()
        return paint, terminal.processor_s()


def first_rows_s(case: Case, size: tuple[int, int], cache: str) -> float:
    """Seconds from the start of the process to the first rows, with a cache; all rows are waited
    for, so that they are there the next time."""
    began = time.monotonic()
    with Terminal(size=size, command=case.command, XDG_CACHE_HOME=cache) as terminal:
        terminal.until(lambda: _ROWS_STAND.search(terminal.text) is not None)
        found = time.monotonic() - began
        while "being read" in terminal.text:
            terminal.quiet(1.0)
        return found


def first_key(case: Case, size: tuple[int, int]) -> float:
    """Processor seconds from the start of the process until the screen shows the effect of a key
    that is typed as soon as its rows stand."""
    with opened(case, size) as terminal:
        terminal.until(lambda: _ROWS_STAND.search(terminal.text) is not None)
        terminal.quiet(_REST_OF_PAINT_S)
        before = terminal.text
        terminal.send("j")
        terminal.until(lambda: terminal.text != before)
        return terminal.processor_s()


def pressed(
    case: Case, size: tuple[int, int], rounds: int
) -> tuple[dict[str, list[tuple[float, int]]], int]:
    """Seconds and bytes of each press of each key, and the bytes of a second without one."""
    seen: dict[str, list[tuple[float, int]]] = {name: [] for name, _ in case.keys}
    with opened(case, size) as terminal:
        terminal.until(lambda: case.is_complete(terminal))
        for _ in range(rounds):
            for name, key in case.keys:
                terminal.quiet(0.4)
                seen[name].append(_press(terminal, key))
        # What was asked for last may still be drawn.
        terminal.quiet(3.0)
        idle = terminal.quiet(1.0)
    return seen, idle


def _press(terminal: Terminal, key: str) -> tuple[float, int]:
    """The last of several keys is measured, in processor seconds until nothing follows; those
    before it only lead there."""
    if not key.startswith("\x1b") and len(key) > 1:
        terminal.send(key[:-1])
        terminal.quiet(0.3)
        key = key[-1]
    before = terminal.processor_s()
    _, count = terminal.timed(key, QUIET_S, silent_s=_MOST_S)
    # It says so where something takes long, each second anew.
    while LOADING in terminal.text:
        terminal.until(lambda: LOADING not in terminal.text)
        count += terminal.quiet(QUIET_S)
    return terminal.processor_s() - before, count


@dataclass(frozen=True, slots=True)
class Press:
    """One press of a key in a view."""

    view: str
    key: str
    seconds: float
    """To the last byte of the complete answer."""
    processor_s: float
    """Of the whole process, until nothing follows any more."""
    sent: int
    follows: int
    """Bytes that came later, such as the detail of the row on which the cursor rests."""


OPENED: Final = "opened"
MOVES: Final = (*_ROWS, ("last row", "G"), ("first row", "g"))
_KEYS: Final = (
    *MOVES,
    *_STEPS[:2],
    ("filter as typed", "/1"),
    ("filter kept", "\r"),
    ("filter taken back", "\x1b"),
    ("zoom in", "+"),
    ("zoom out", "-"),
    ("next signal", "M"),
    ("into the row", "\r"),
    ("back", "H"),
    ("next view of the digit", "{digit}"),
    ("back again", "H"),
    ("a GPU", ":go {store}:gpu=1?view={view}\r"),
    ("next sibling", "]"),
    ("previous sibling", "["),
)
FIRST: Final = (OPENED, "next view of the digit")
"""Keys that open a view for the first time: they have a budget of their own."""
_FIRST_OF_THEM: Final = _KEYS.index(("into the row", "\r"))
"""The keys from this one on lead to another breadcrumb, or to a message."""
_MOST_S: Final = 1.0
"""After which a breadcrumb that hasn't changed won't, and what has brought no byte won't."""
_TYPED_BYTES: Final = 100
"""A key that is text in a prompt brings fewer."""
_PAUSE_S: Final = 0.25
"""Between keys: the detail of a row comes within it."""


def walk(ranks: int, kernels: int, size: tuple[int, int], views: Iterable[str]) -> list[Press]:
    """A person's keys in views of a large run, one after the other in one explorer."""
    store = str(store_of(ranks, kernels, parts=True))
    case, found = first_screen(ranks, kernels), list[Press]()
    with opened(case, size) as terminal:
        terminal.until(lambda: case.is_complete(terminal))
        terminal.rest()
        for view in views:
            digit = VIEWS[view].place
            keys = [(OPENED, f":go {store}?view={view}\r")]
            keys += [(n, key.format(store=store, view=view, digit=digit)) for n, key in _KEYS]
            for number, (name, key) in enumerate(keys, -1):
                if not key.startswith("\x1b") and len(key) > 1:
                    terminal.send(key[:-1])
                    terminal.quiet(_PAUSE_S)
                    key = key[-1]
                leads_on = name == OPENED or number >= _FIRST_OF_THEM
                before = terminal.processor_s()
                is_answer = _answer(terminal, leads_on)
                seconds, sent = terminal.timed(key, QUIET_S, 60.0, is_answer, _MOST_S)
                follows = terminal.quiet(_PAUSE_S)
                took = max(terminal.processor_s() - before, 0.0)
                found.append(Press(view, name, seconds, took, sent, follows))
    opened_views = {each.view for each in found if each.key == OPENED and each.sent > _TYPED_BYTES}
    if 2 * len(opened_views) < len({each.view for each in found}):
        raise RuntimeError("keys are typed where they open nothing")
    return found


def _answer(terminal: Terminal, leads_on: bool) -> Callable[[], bool]:
    """Whether the screen is complete: with the new breadcrumb, and nothing that is computed."""
    head, since = terminal.screen.display[:2], time.monotonic()

    def is_there() -> bool:
        if LOADING in terminal.text or "computing…" in terminal.text:
            return False
        is_new = terminal.screen.display[:2] != head
        return not leads_on or is_new or time.monotonic() - since > _MOST_S

    return is_there


def report_of_walk(found: list[Press], title: str) -> Iterator[str]:
    """The lines of tables of views and of keys."""
    yield (
        f"{title}, 80×24, one explorer: each view is opened, then the keys of the second table "
        f"come, each {_PAUSE_S:g} s after the answer before it. A key's processor time is that of "
        "the whole process, with all that follows its answer; others on the machine don't lengthen "
        "it. The last line of the first table leaves out the keys that open a view for the first "
        "time."
    )
    yield ""
    yield (
        "| view | opened, ms | median ms | p95 ms | processor, p95 ms "
        "| bytes of a move or jump, most | what follows it, most |"
    )
    yield "| :-- | --: | --: | --: | --: | --: | --: |"
    moves = dict(MOVES)
    for view in dict.fromkeys(each.view for each in found):
        first, *own = [each for each in found if each.view == view]
        steps = [each for each in own if each.key in moves and not each.key.startswith("page")]
        yield (
            f"| {view} | {1000 * first.seconds:.0f} | {_ms(own, median)} | {_ms(own, p95)} "
            f"| {1000 * p95([each.processor_s for each in own]):.0f} "
            f"| {max(each.sent for each in steps)} | {max(each.follows for each in steps)} |"
        )
    own = [each for each in found if each.key not in FIRST]
    took = 1000 * p95([each.processor_s for each in own])
    yield f"| all | | {_ms(own, median)} | {_ms(own, p95)} | {took:.0f} | | |"
    yield ""
    yield "| key, over all views | median ms | p95 ms | slowest in | processor, median ms |"
    yield "| :-- | --: | --: | :-- | --: |"
    for key in dict.fromkeys(each.key for each in found):
        own = [each for each in found if each.key == key]
        slowest = max(own, key=lambda each: each.seconds)
        yield (
            f"| {key} | {_ms(own, median)} | {_ms(own, p95)} | {slowest.view}, "
            f"{1000 * slowest.seconds:.0f} ms "
            f"| {1000 * median(each.processor_s for each in own):.0f} |"
        )


def _ms(found: list[Press], of: Callable[[list[float]], float]) -> str:
    return f"{1000 * of([each.seconds for each in found]):.0f}"


_CACHE = tempfile.TemporaryDirectory(prefix="chopper-bench-")


def opened(case: Case, size: tuple[int, int]) -> Terminal:
    """The explorer of a case in a terminal, with a cache and settings of the benchmark's own."""
    cache = os.environ.get("XDG_CACHE_HOME", _CACHE.name)
    return Terminal(
        size=size, command=case.command, XDG_CACHE_HOME=cache, XDG_CONFIG_HOME=_CACHE.name
    )
