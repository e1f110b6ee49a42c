"""An explorer at rest: what places were made of is left to others, and comes again."""

from __future__ import annotations

import gc
from collections import Counter
from functools import partial

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.model.memo import LazyMap
from chopper_core.views import VIEWS
from chopper_tui import screen
from tests.support import sample_run
from tests.tui.explorer import explorer
from tests.tui.test_runs_screen import set_of_runs

TURNS = Counter(tab.place for tab in VIEWS.values())
"""Digit → the views that it opens in turn."""


def _large_arrays(least_bytes: int) -> dict[int, np.ndarray]:
    """All that Python's collector knows of, which own their memory."""
    found = dict[int, np.ndarray]()
    for holder in gc.get_objects():
        for each in gc.get_referents(holder):
            if isinstance(each, np.ndarray) and each.base is None and each.nbytes >= least_bytes:
                found[id(each)] = each
    return found


async def test_nothing_as_long_as_the_run_stays_of_places_that_were_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = sample_run(gpus=2, iterations=3, layers=20)
    least = len(run.table)
    """A mask of the run's activities; most columns take more for each."""
    monkeypatch.setattr(screen, "_KEPT_AT_REST", 0)
    async with explorer((120, 40), run) as at:
        run.table.column("shape")  # Kept with the table, as its columns are.
        gc.collect()
        before = _large_arrays(least)
        assert before, "the table's columns"
        for digit in sorted(TURNS):
            for _ in range(TURNS[digit]):
                await at.press(digit)
        await at.press("1")
        assert len(_large_arrays(least)) > len(before) + 10
        there, label = at.text(), at.label
        screen._leave(at.explore.home, at.explore.run)
        left = [each for key, each in _large_arrays(least).items() if key not in before]
        assert not [(each.dtype, each.shape) for each in left]
        await at.press("2", "1")
        assert (at.text(), at.label) == (there, label), "a key works as before"


@pytest.mark.parametrize("enters", [("enter",), ("j", "enter")])
async def test_runs_that_were_opened_from_a_set_are_left_too(
    enters: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "_KEPT_AT_REST", 0)
    runs = set_of_runs()
    others = LazyMap(runs.others, lambda path: replace(runs.others[path]))
    home = replace(runs, others=others)
    async with explorer((120, 40), home) as at:
        await at.press(*enters, "3", "escape", "escape")
        opened = [*others.made()]
        assert len(opened) == 1 and at.explore.run is home
        for each in (home, *opened):
            each.memo(("large",), partial(np.zeros, 1_000))
        screen._leave(at.explore.home, at.explore.run)
        assert not any(each.memo.has(("large",)) for each in (home, *opened))
        assert [*others.made()] == opened, "a run that nobody opened isn't opened for it"
