"""Which signals of a run are worth a look: those that change over time, and aren't one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Final

import numpy as np

from chopper_core.model.memo import LazyMap
from chopper_core.model.run import Run
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64

_SECOND_SIGNALS: Final = ("gfx_util_pct", "busy_pct", "compute_pct")
"""Candidates for the signal next to the chosen one, the best first."""
_COMPARED: Final = 32
"""Parts of the time that two signals are compared in."""
_SAME_PCT: Final = 1.0
_FLAT: Final = 0.01
"""Of its largest value, of a share of all: a signal that changes less is flat."""


def second_signal(run: Run, chosen: str) -> str:
    there = [name for name in (*_SECOND_SIGNALS, *run.signal_names) if name in run.signal_names]
    others = [name for name in there if name != chosen]
    known = [name for name in others if len(run.signal(name).curves)]
    # One after the other: of a run with much telemetry each has to be averaged to tell.
    varying = (name for name in known if varies(run, name) and not _is_same(run, name, chosen))
    own = (name for name in known if not _is_same(run, name, chosen))
    return next(chain(varying, own, others))


def worth_a_chart(run: Run, chosen: str, second: str) -> int:
    """How many of two signals are worth a chart."""
    return 2 if varies(run, second) else int(varies(run, chosen))


def worth_a_column(run: Run, chosen: str, second: str) -> int:
    """How many of them are worth a column of sparklines."""
    return 2 if chosen == second else 1 + _says_more(run, second, chosen)


def _kept(run: Run, key: tuple[str, ...], made: Callable[[], bool]) -> bool:
    """What was found out of a signal, once for the run's files: of millions of activities the
    share of time in which they run takes long to tell."""

    def same(known: bool) -> bool:
        return known

    return run.memo(key, lambda: run.kept(key, bool, made, same, same))


def _says_more(run: Run, name: str, chosen: str) -> bool:
    """Whether a signal is worth a column next to another: not the same one, not 0 all the time."""
    if varies(run, name):
        return True

    def is_any() -> bool:
        return any(np.nan_to_num(means).any() for means in _means_of(run, name).values())

    return not _is_same(run, name, chosen) and _kept(run, ("not 0", name), is_any)


def varies(run: Run, name: str) -> bool:
    """Whether a signal changes over time, or from GPU to GPU: a flat one says nothing."""
    return _kept(run, ("varies", name), lambda: _varies(run, name))


def _varies(run: Run, name: str) -> bool:
    is_share, least, most = run.signal(name).unit == Unit.PERCENT, np.inf, -np.inf
    for means in _means_of(run, name).values():
        least = min(least, float(np.nanmin(means, initial=np.inf)))
        most = max(most, float(np.nanmax(means, initial=-np.inf)))
        if is_share and most - least > _FLAT * 100.0:
            return True  # Whatever the other GPUs do: of many each takes long.
    return most - least > _FLAT * max(abs(least), abs(most))


def _means_of(run: Run, name: str) -> Mapping[int, Float64]:
    """The means of each GPU in parts of the run's time."""

    def cut() -> Float64:
        end = int(run.table.start_ns.max(initial=run.origin_ns + 1))
        return np.linspace(run.origin_ns, end, _COMPARED + 1)

    def found() -> Mapping[int, Float64]:
        edges, curves = run.memo(("parts of the run's time",), cut), run.signal(name).curves
        return LazyMap(curves, lambda gpu: curves[gpu].means(edges))

    return run.memo(("means of a signal", name), found)


def _is_same(run: Run, name: str, chosen: str) -> bool:
    """Whether two signals in % are one curve, as busy and compute where nothing else runs."""
    return _kept(run, ("same", name, chosen), lambda: _are_same(run, name, chosen))


def _are_same(run: Run, name: str, chosen: str) -> bool:
    one, other = (_means_of(run, each) for each in (name, chosen))
    units = {run.signal(each).unit for each in (name, chosen)}
    if units != {Unit.PERCENT} or one.keys() != other.keys():
        return False
    differences = (np.abs(one[gpu] - other[gpu]) for gpu in one)
    known = (each[np.isfinite(each)] for each in differences)
    return all(each.mean() < _SAME_PCT for each in known if len(each))
