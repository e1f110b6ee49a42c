"""Random keys, mouse, pastes and resizes on the explorer: `python -m tests.monkey --seconds 3600`.

Every session has a seed, which repeats it: `--seed N --sessions 1`.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

from msgspec import Struct
from textual import events
from textual.geometry import Size

from chopper_core.ingest.cache import open_cached
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.views import VIEWS
from chopper_tui.actions import ACTIONS
from chopper_tui.app import ChopperApp
from chopper_tui.screen import Explorer
from tests.demo import demo_run
from tests.tui.explorer import Driven, explorer, measured_run, sample_run

LEAVING: Final = ("q", "ctrl+c", "ctrl+z")
KEYS: Final = [key for action in ACTIONS for key in action.keys if key not in LEAVING]
EDITING: Final = ["enter", "escape", "tab", "shift+tab", "backspace", "delete", "home", "end"]
OPENING: Final = ["m", "o", "s", "p", "C", "?", "i", "ctrl+p", ":", "/", "f", "ctrl+g", "0", "8"]
ODD_KEYS: Final = [
    "f1",
    "f12",
    "ctrl+a",
    "ctrl+w",
    "ctrl+u",
    "insert",
    "ctrl+@",
    "é",
    "界",
    "\u202e",
]
PASTES: Final = [
    "view timeline", "sort -kernel_ns", "go gpu=1/iteration=11", "[red]bold", "\x1b[31m",
    "a\nb\n\n",
    "(((", "x" * 5000, "filter [", "baseline gpu=0", "tour", "width 3", "\u202egpu", "", " ",
]  # fmt: skip
SIZES: Final = [
    Size(*size)
    for size in ((1, 1), (2, 3), (20, 5), (39, 9), (40, 10), (80, 24), (120, 40), (200, 60))
] + [Size(500, 200)]
MAX_HANG_S: Final = 2.0
SETTLE_S: Final = 60.0


class Outcome(Struct):
    """A session: what ended it, how many inputs it took, and the longest silence of the loop."""

    seed: int
    inputs: int = 0
    longest_s: float = 0.0
    crash: str = ""
    last: tuple[str, ...] = ()


def hostile_run(folder: Path) -> Run:
    """A trace whose names are escape sequences, markup, formulas and bidirectional controls."""
    names = ["\x1b[2J\x1b]0;owned\x07", "[bold red]x[/]", "=1+1", "\u202etxt.exe", "a\u200bb", "ab",
             "../../etc/passwd", "<script>", "|a|b|", "x" * 6000, "", "\x00", "\ud83d"]  # fmt: skip
    spans = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": 1000 + 10 * i, "dur": 7 - i % 3, "pid": 0,
         "tid": 7 + i % 2, "args": {"device": 0, "stream": 7 + i % 2, "correlation": i}}
        for i, name in enumerate(names * 20)
    ]  # fmt: skip
    path = folder / "hostile [red]\u202e.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": spans}).encode(errors="replace")))
    return open_cached(str(path))


def runs(folder: Path, names: Sequence[str]) -> list[Run]:
    """The generated runs, and those of the given paths."""
    own = [sample_run(), measured_run(), sample_run(1, 1, 2), hostile_run(folder), demo_run()]
    return [*own, *(open_cached(name) for name in names)]


async def session(seed: int, run: Run, inputs: int) -> Outcome:
    """One session of random input; crashes and silences are in the outcome."""
    random = Random(seed)
    outcome = Outcome(seed)
    recent: list[str] = []
    start = View(run.name, name=random.choice(["", *VIEWS]))
    if start.name == "compare":
        start = View(run.name)
    size = random.choice([(80, 24), (120, 40), (200, 60), (40, 10), (20, 5)])
    app = ChopperApp(lambda _: run, start)
    try:
        async with explorer(size, app=app) as at:
            watch = asyncio.create_task(_watch(outcome))
            while outcome.inputs < inputs and at.app.is_running:
                for _ in range(random.randint(1, 12)):
                    recent.append(_input(at, random))
                    outcome.inputs += 1
                del recent[:-40]
                if random.random() < 0.6:
                    await asyncio.wait_for(at.settle(), SETTLE_S)
                else:
                    await asyncio.sleep(random.choice([0, 0, 0.005, 0.02]))
            if at.app.is_running:
                await asyncio.wait_for(at.settle(), SETTLE_S)
                at.send(*["escape"] * 8)
                await asyncio.wait_for(at.settle(), SETTLE_S)
                if at.app.is_running and not isinstance(at.app.screen, Explorer):
                    outcome.crash = f"Esc leaves {type(at.app.screen).__name__} open"
            watch.cancel()
        if at.app.crash is not None:
            raise at.app.crash
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome.crash = "".join(traceback.format_exception(error))
    outcome.last = tuple(recent)
    return outcome


def _input(at: Driven, random: Random) -> str:
    """Put one random input into the app's queue; its description."""
    kind = random.random()
    width, height = at.app.size
    if kind < 0.78:
        key = random.choice(
            random.choices(
                [KEYS, OPENING, EDITING, ODD_KEYS, list("agjkx019 .*")], [6, 3, 6, 1, 2]
            )[0]
        )
        at.send(key)
        return key
    if kind < 0.93:
        x, y = random.randrange(-1, width + 2), random.randrange(-1, height + 2)
        types = [events.MouseDown, events.MouseUp, events.MouseMove, events.MouseScrollDown,
                 events.MouseScrollUp]  # fmt: skip
        chosen = random.choice([types[:2], types[2:3], types[3:4], types[4:], [types[0], types[2]]])
        for each in chosen:
            dx, dy, button = random.randrange(-3, 4), random.randrange(-3, 4), random.randrange(4)
            shift = random.random() < 0.1
            event = each(None, x, y, dx, dy, button, shift, False, False, x, y)
            event.set_sender(at.app)
            at.app.post_message(event)
        return f"mouse {x},{y}"
    if kind < 0.97:
        text = random.choice(PASTES)
        if random.random() < 0.5:
            at.send(":")
        at.paste(text)
        return f"paste {text[:20]!r}"
    new = random.choice(SIZES)
    event = events.Resize(new, new)
    event.set_sender(at.app)
    at.app.post_message(event)
    return f"resize {new.width}x{new.height}"


async def _watch(outcome: Outcome) -> None:
    """Note the longest time in which the event loop did nothing else."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(0.05)
        outcome.longest_s = max(outcome.longest_s, time.monotonic() - before - 0.05)


@contextmanager
def _elsewhere() -> Iterator[Path]:
    """A temporary working directory: exports write files."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(here)


def play(
    seed: int,
    *,
    sessions: int = 0,
    seconds: float = 0,
    inputs: int = 300,
    names: Sequence[str] = (),
) -> list[Outcome]:
    """Play sessions from a seed on, for a number of them or for some seconds."""
    outcomes: list[Outcome] = []
    with _elsewhere() as folder:
        opened = runs(folder, names)
        end = time.monotonic() + seconds
        while len(outcomes) < sessions or time.monotonic() < end:
            run = opened[seed % len(opened)]
            outcome = asyncio.run(session(seed, run, inputs))
            if outcome.crash:
                last = " ".join(outcome.last)
                print(f"seed {seed}, {outcome.inputs} inputs: {last}\n{outcome.crash}", flush=True)
            outcomes.append(outcome)
            seed += 1
    return outcomes


def main() -> int:
    """Play, and print what was found; 1 where something crashed or was silent for too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", help="more runs, beside generated ones and the demo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sessions", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--inputs", type=int, default=300, help="inputs a session")
    options = parser.parse_args()
    names = [str(Path(name).resolve()) for name in options.runs]
    before = _resident_mb()
    outcomes = play(
        options.seed,
        sessions=options.sessions,
        seconds=options.seconds,
        inputs=options.inputs,
        names=names,
    )
    crashes = [each for each in outcomes if each.crash]
    kinds = Counter(each.crash.strip().splitlines()[-1][:100] for each in crashes)
    for kind, count in kinds.most_common():
        print(f"{count:5} x {kind}")
    slow = [each for each in outcomes if each.longest_s > MAX_HANG_S]
    print(
        f"{len(outcomes)} sessions, {sum(each.inputs for each in outcomes)} inputs, "
        f"{len(crashes)} crashes, {len(slow)} with a silence over {MAX_HANG_S:g} s (longest "
        f"{max((each.longest_s for each in outcomes), default=0):.1f} s, seeds "
        f"{[each.seed for each in slow][:10]}), {before} -> {_resident_mb()} MB"
    )
    return bool(crashes or slow)


def _resident_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main())
