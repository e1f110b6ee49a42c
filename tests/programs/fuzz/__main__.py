"""Damaged files, one after the other: `python -m tests.programs.fuzz --seconds 3600`.

Every attack has a name and a number, which repeat it: `--only "rocpd" --first 17 --count 1`.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Any, Final

from tests.programs.fuzz.attack import attack, attack_cells, attack_own
from tests.programs.fuzz.seeds import OWN, SEEDS

_LIMIT_S: Final = 20
"""An attack on a file of some kB that takes longer hangs."""
_SHOWN: Final = 3
_CELLS: Final = "instead, one in STEP cells of another type or magnitude; 1: all 40,000"
_LIMIT_BYTES: Final = 3 << 30


def main() -> int:
    """Attack for a time, print each failure once and what came of all; 1 where any failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--first", type=int, help="number of the first attack; default: random")
    parser.add_argument("--count", type=int, help="attacks, whatever their time")
    parser.add_argument("--only", choices=[*SEEDS, *OWN], action="append", help="of these files")
    parser.add_argument("--cells", type=int, metavar="STEP", help=_CELLS)
    options = parser.parse_args()
    warnings.simplefilter("error", RuntimeWarning)
    resource.setrlimit(resource.RLIMIT_AS, (_LIMIT_BYTES, _LIMIT_BYTES))
    signal.signal(signal.SIGALRM, _hangs)
    if options.cells:
        return _cells(options.only or [*SEEDS], options.cells)
    names = options.only or [*SEEDS, *OWN]
    first = Random().randrange(10**9) if options.first is None else options.first
    outcomes: Counter[tuple[str, str]] = Counter()
    failures: Counter[str] = Counter()
    end = time.monotonic() + options.seconds
    for number in count(first):
        if number - first == options.count if options.count else time.monotonic() > end:
            break
        for name in names:
            signal.alarm(_LIMIT_S)
            try:
                outcomes[name, (attack_own if name in OWN else attack)(name, number)] += 1
            except Exception as error:
                outcomes[name, "failed"] += 1
                place = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{type(error).__name__} in {place.filename}:{place.lineno}"
                failures[where] += 1
                if failures[where] == 1:
                    print(f'--only "{name}" --first {number} --count 1: {where}: {error}'[:400])
            finally:
                signal.alarm(0)
    for name in names:
        there = {word: outcomes[name, word] for word in ("opened", "refused", "failed")}
        print(f"{name:24}", *(f"{each:7} {word}" for word, each in there.items()))
    print(f"{outcomes.total()} attacks from number {first}, {failures.total()} failed")
    for where, each in failures.most_common():
        print(f"{each:7} {where}")
    return int(bool(failures))


def _cells(names: Sequence[str], step: int) -> int:
    """Try one in `step` cells of another type or magnitude of each file."""
    failures: Counter[str] = Counter()
    for name in names:
        outcomes: Counter[str] = Counter()
        for what, attempt in attack_cells(name, step):
            signal.alarm(_LIMIT_S)
            try:
                outcomes[attempt()] += 1
            except Exception as error:
                outcomes["failed"] += 1
                place = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{type(error).__name__} in {place.filename}:{place.lineno}"
                failures[where] += 1
                if failures[where] <= _SHOWN:
                    print(f"{name}: {what}: {where}: {error}"[:400], flush=True)
            finally:
                signal.alarm(0)
        print(f"{name:24} {outcomes.total():7} {dict(outcomes)}", flush=True)
    for where, each in failures.most_common():
        print(f"{each:7} {where}")
    return int(bool(failures))


def _hangs(*_: Any) -> None:
    raise TimeoutError(f"hangs for {_LIMIT_S} s")


sys.exit(main())
