"""Random keys, mouse, pastes and resizes on the explorer.

`python -m tests.programs.monkey --seconds 3600`: every session has a seed, which repeats it:
`--seed N --sessions 1`. A file collects what is found and how much memory the process takes as
sessions go by: `--log FILE`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from chopper_core.util.memory import share_one_heap
from tests.programs.monkey.kinds import KINDS, Made, opened
from tests.programs.monkey.session import MAX_HANG_S, Outcome, handles, resident_mb, session, use


@contextmanager
def _elsewhere() -> Iterator[Path]:
    """A temporary working directory, and one for the state: exports write files."""
    here, state = Path.cwd(), os.environ.get("XDG_STATE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        try:
            yield Path(folder)
        finally:
            os.chdir(here)
            os.environ.pop("XDG_STATE_HOME")
            if state is not None:
                os.environ["XDG_STATE_HOME"] = state


def play(
    seed: int,
    *,
    sessions: int = 0,
    seconds: float = 0,
    inputs: int = 300,
    names: Sequence[str] = (),
    kinds: Sequence[str] = tuple(KINDS),
    log: TextIO | None = None,
) -> list[Outcome]:
    """Play sessions from a seed on, for a number of them or for some seconds."""
    outcomes: list[Outcome] = []
    with _elsewhere() as folder:
        made: dict[str, Made] = {}
        end = time.monotonic() + seconds
        every = [*kinds, *names]
        while len(outcomes) < sessions or time.monotonic() < end:
            kind = every[seed % len(every)]
            if kind not in made:
                made[kind] = KINDS[kind](folder) if kind in KINDS else opened(kind)
            outcome = asyncio.run(session(seed, kind, *made[kind], inputs))
            outcomes.append(outcome)
            for line in _report(outcome):
                print(line, flush=True)
                if log is not None:
                    print(line, file=log, flush=True)
            if log is not None and len(outcomes) % len(every) == 0:
                print(_state(outcomes), file=log, flush=True)
            seed += 1
    return outcomes


def work_on(kind: str, actions: int) -> list[float]:
    """Work in one explorer as a person does; the memory in MB after each tenth of it."""
    sizes: list[float] = []
    share_one_heap()  # As the explorer does.

    def note(done: int) -> None:
        gc.collect()
        sizes.append(resident_mb())
        print(
            f"{done} actions: {sizes[-1]:.1f} MB, {len(gc.get_objects())} objects, {handles()} "
            f"handles, {threading.active_count()} threads, {time.process_time():.0f} s",
            flush=True,
        )

    with _elsewhere() as folder:
        made = KINDS[kind](folder) if kind in KINDS else opened(kind)
        asyncio.run(use(*made, actions, note))
    return sizes


def _report(outcome: Outcome) -> Iterator[str]:
    where = f"seed {outcome.seed} ({outcome.kind}), {outcome.inputs} inputs"
    if outcome.crash:
        yield f"{where}: {' '.join(outcome.last)}\n{outcome.crash}"
    if outcome.growth:
        yield f"{where}: {' '.join(outcome.last)}\n{outcome.growth}"
    if outcome.longest_s > MAX_HANG_S:
        yield f"{where}: silent for {outcome.longest_s:.1f} s\n{outcome.silence}"


def _state(outcomes: Sequence[Outcome]) -> str:
    gc.collect()
    total = sum(each.inputs for each in outcomes)
    found = sum(bool(each.crash) for each in outcomes)
    return (
        f"state: {len(outcomes)} sessions, {total} inputs, {found} crashes, longest silence "
        f"{max(each.longest_s for each in outcomes):.2f} s; {time.process_time():.0f} s of the "
        f"processor, {resident_mb():.1f} MB, "
        f"{len(gc.get_objects())} objects, {handles()} handles, {threading.active_count()} threads"
    )


def main() -> int:
    """Play, and print what was found; 1 where something crashed or was silent for too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", help="more runs, beside generated ones and the demo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sessions", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--inputs", type=int, default=300, help="inputs a session")
    parser.add_argument("--kind", action="append", choices=tuple(KINDS), help="only this kind")
    parser.add_argument("--log", type=argparse.FileType("a"))
    parser.add_argument("--user", type=int, default=0, help="a person's actions in one session")
    options = parser.parse_args()
    if options.user:
        work_on((options.kind or ["demo"])[0], options.user)
        return 0
    outcomes = play(
        options.seed,
        sessions=options.sessions,
        seconds=options.seconds,
        inputs=options.inputs,
        names=[str(Path(name).resolve()) for name in options.runs],
        kinds=options.kind or tuple(KINDS),
        log=options.log,
    )
    crashes = [each for each in outcomes if each.crash]
    kinds = Counter(each.crash.strip().splitlines()[-1][:100] for each in crashes)
    for kind, count in kinds.most_common():
        print(f"{count:5} x {kind}")
    slow = [each for each in outcomes if each.longest_s > MAX_HANG_S]
    print(_state(outcomes))
    print(f"seeds with a silence over {MAX_HANG_S:g} s: {[each.seed for each in slow]}")
    return bool(crashes or slow)


if __name__ == "__main__":
    sys.exit(main())
