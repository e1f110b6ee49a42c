"""Host time: what the launching threads did while their GPUs had nothing to run.

The idle time of each GPU, cut wherever the thread that launches next enters or leaves a runtime
call, an operator, an annotation or a Python frame. The pieces of a gap lie in the idle time that
`accounting` charges to the activity that ends it, and add up to that, to the nanosecond. Copies
that nothing hides are cut in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from msgspec import Struct

from chopper_core.model.side_table import SideTable
from chopper_core.model.table import KernelTable
from chopper_core.util.arrays import Index, Int8, Int32, Int64
from chopper_core.util.grouping import stable_order


class HostState(IntEnum):
    """The state of the GPU meanwhile."""

    LATE = 0
    """Idle, before the launch call of the activity that ends it: `idle_host_ns`."""
    LAUNCHED = 1
    """Idle, from that call on: `idle_launch_ns`."""
    COPYING = 2
    """Only the copy runs that it belongs to."""


class HostStack(Struct, frozen=True):
    """Where a host thread was: the innermost of each kind, '' without one."""

    call: str = ""
    """A call of the GPU's runtime."""
    operator: str = ""
    annotation: str = ""
    """A user annotation that is not a whole step."""
    frame: str = ""
    """A Python frame of 100 µs or more."""


class HostTime(SideTable, frozen=True, eq=False):
    """Pieces of time of the GPUs of a run, in order of GPU and time."""

    FILE = "host.arrow"
    NAME = HostStack
    CODES = ("stack",)
    TIMES = ("start_ns",)

    start_ns: Int64
    duration_ns: Int64
    stack: Int32
    """Code of the stack."""
    state: Int8
    """Of `HostState`."""

    @property
    def stacks(self) -> Sequence[HostStack]:
        """The stacks of the codes."""
        return self.names

    def owners(self, table: KernelTable, rows: Index) -> Index:
        """The row that each piece is charged to, of some rows of the table; -1 for others'.

        A gap ends where the activity starts that it is charged to.
        """
        found = np.full(len(self), -1, np.intp)
        for states, charged in (
            ((HostState.LATE, HostState.LAUNCHED), table.idle_ns[rows]),
            ((HostState.COPYING,), table.exposed_copy_ns[rows]),
        ):
            own, length = rows[charged > 0], charged[charged > 0]
            pieces = np.flatnonzero(np.isin(self.state, states))
            if not len(own) or not len(pieces):
                continue
            starts, wanted = table.start_ns[own], self.start_ns[pieces]
            is_copy = HostState.COPYING in states
            begins = starts if is_copy else starts - length
            # GPU after GPU on one axis: no time of one is beyond those of the next.
            first = min(int(begins.min()), int(wanted.min()))
            width = max(int((begins + length).max()), int(wanted.max())) - first + 1
            place = table.gpu[own].astype(np.int64) * width + (begins - first)
            order = stable_order(place)
            own, place, length = own[order], place[order], length[order]
            at_piece = self.gpu[pieces].astype(np.int64) * width + (wanted - first)
            at = np.searchsorted(place, at_piece, "right") - 1
            at_row = np.maximum(at, 0)
            inside = (at >= 0) & (at_piece < place[at_row] + length[at_row])
            found[pieces[inside]] = own[at[inside]]
        return found
