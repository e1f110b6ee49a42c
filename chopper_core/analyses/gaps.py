"""Gaps of a GPU: time in which nothing runs on it, and what its host does during that time."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.host_causes import cause_of
from chopper_core.analyses.lanes import lanes_of
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostTime
from chopper_core.model.table import LEVELS
from chopper_core.model.units import time_text
from chopper_core.model.view import View, Window, with_view
from chopper_core.util.arrays import Int64
from chopper_core.util.grouping import median_of

_MOST_CAUSES: Final = 2
"""Names, at most, of what a host does in a gap."""
_UNUSUAL: Final = 10
"""Times the median gap: a gap from which it is more than the distance between launches."""
_GAPS_SHOWN: Final = 1000
"""Of the time shown: gaps of this part of it can be seen."""


class Gap(Struct, frozen=True):
    """Idle time of a GPU between two activities, in ns of the run's clock."""

    gpu: int
    begin_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.begin_ns

    @property
    def middle_ns(self) -> int:
        return self.begin_ns + self.length_ns // 2


def gap_around(run: Run, gpu: int, at_ns: int) -> Gap | None:
    """The gap of a GPU at a moment; None where something runs, and before and after all."""
    busy = lanes_of(run, gpu, whole=True)[0].busy
    after = int(np.searchsorted(busy.starts_ns, at_ns, "right"))
    if not 0 < after < len(busy.starts_ns) or at_ns < busy.ends_ns[after - 1]:
        return None
    return Gap(gpu, int(busy.ends_ns[after - 1]), int(busy.starts_ns[after]))


def _gaps_of(run: Run, gpu: int) -> tuple[Int64, Int64]:
    """When the gaps between a GPU's activities begin and end, in order."""
    busy = lanes_of(run, gpu, whole=True)[0].busy
    begins, ends = busy.ends_ns[:-1], busy.starts_ns[1:]
    return begins[ends > begins], ends[ends > begins]


def next_gap(run: Run, gpu: int, at_ns: int, step: int, least_ns: int) -> Gap | None:
    """The gap after (1) or before (-1) a moment that lasts at least so long; None: none."""
    begins, ends = _gaps_of(run, gpu)
    is_beyond = begins > at_ns if step > 0 else ends <= at_ns
    found = np.flatnonzero(is_beyond & (ends - begins >= least_ns))
    if not len(found):
        return None
    place = int(found[0 if step > 0 else -1])
    return Gap(gpu, int(begins[place]), int(ends[place]))


def gap_to_stop_at(run: Run, gpu: int, at_ns: int, step: int, shown_ns: int) -> Gap | None:
    """The gap after (1) or before (-1) a moment that is no usual distance between launches, or else
    the longest; where little time is shown, in ns, also shorter ones. None: none at all."""
    begins, ends = _gaps_of(run, gpu)
    lengths = ends - begins
    if not len(lengths):
        return None
    unusual = int(_UNUSUAL * median_of(lengths))
    found = next_gap(run, gpu, at_ns, step, max(min(shown_ns // _GAPS_SHOWN, unusual), 1))
    if found is not None:
        return found
    beyond = lengths[begins > at_ns if step > 0 else ends <= at_ns]
    return next_gap(run, gpu, at_ns, step, int(beyond.max())) if len(beyond) else None


def longest_of_gpu(run: Run, gpu: int) -> Gap | None:
    """The longest gap between two activities of a GPU; None where nothing is idle."""
    begins, ends = _gaps_of(run, gpu)
    if not len(begins):
        return None
    place = int((ends - begins).argmax())
    return Gap(gpu, int(begins[place]), int(ends[place]))


def longest_gap(run: Run, view: View) -> Gap | None:
    """The longest gap before an activity of a view's scope; None where nothing is idle."""
    rows = np.atleast_1d(run.tree_of(view).node(view.path).rows)
    table = run.table
    if not len(rows) or not (idle_ns := table.idle_ns[rows]).any():
        return None
    row = int(rows[int(idle_ns.argmax())])
    end = int(table.start_ns[row])
    return Gap(int(table.gpu[row]), end - int(table.idle_ns[row]), end)


def timeline_of_gap(run: Run, view: View, gap: Gap) -> View:
    """The timeline of the gap's GPU with the cursor in the gap, and as much time around it."""
    begin = gap.begin_ns - run.origin_ns
    window = Window(
        max(begin - gap.length_ns, 0), begin + 2 * gap.length_ns, gap.middle_ns - run.origin_ns
    )
    there = View(view.run, (str(gap.gpu),), LEVELS, overrides=view.overrides)
    return replace(with_view(there, "timeline"), window=window)


def host_during(run: Run, gap: Gap) -> str:
    """What the thread that launches for the GPU does in a gap, the longest first; empty without a
    record: `reading a value back (aten::item) 12.1 ms, launch calls 2.3 ms`."""
    host = run.side(HostTime)
    own = host.of_gpu(gap.gpu)
    begins = np.maximum(host.start_ns[own], gap.begin_ns)
    ends = np.minimum(host.start_ns[own] + host.duration_ns[own], gap.end_ns)
    times: dict[str, int] = {}
    for place in np.flatnonzero(ends > begins).tolist():
        text = cause_of(host.stacks[int(host.stack[own][place])]).text
        times[text] = times.get(text, 0) + int(ends[place] - begins[place])
    longest = sorted(times, key=lambda text: -times[text])
    said = [f"{text} {time_text(times[text])}" for text in longest[:_MOST_CAUSES]]
    return ", ".join(said)
