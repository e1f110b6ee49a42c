"""Lateness: how long each GPU delays the others on the way to an iteration's end. GPUs leave a
collective together, so lateness starts from zero until the next one of the same GPUs. A GPU's
lateness there is how much later than the usual one of its peers (the lower median) it arrives,
minus the exposed communication that it had with other GPUs then: the GPU it waited for is
late, not it. A GPU without peers there, such as a stage of a pipeline, is late by design. Only the
part for which the others wait without compute counts. A GPU's delay of an iteration is the sum
over the collectives of the same GPUs, minus the usual sum among those GPUs, since every GPU is
last by chance at times; of several sets of GPUs, such as those of tensor and data parallelism, the
one that it delays most counts, because a delay in one is a delay in the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.run import Run
from chopper_core.model.table import KernelTable
from chopper_core.util.arrays import Float64, Index, Int64
from chopper_core.util.grouping import (
    beyond_others,
    counts_of,
    distinct,
    hashes,
    ranked,
    run_sizes,
    run_starts,
    run_sums,
    stable_order,
    sums_of,
)
from chopper_core.views.shared.collectives import PAIRWISE, Collectives

_MIN_PEERS: Final = 2


class Lateness(Struct, frozen=True, eq=False):
    """How late each kernel of the collectives is, along `members.rows` of them."""

    found: Collectives
    team: Index
    """The set of GPUs of each collective, as a number."""
    kin: Int64
    """The set of peers of each GPU, as a number."""
    late_ns: Int64
    """How long the others wait for the kernel, exposed; 0 for all that are not late."""

    def delays(self, members: Index, gpus: tuple[int, ...], iterations: tuple[int, ...]) -> Float64:
        """By how much each GPU delays the others, as GPUs x iterations, by some of the kernels."""
        table, rows = self.found.members.table, self.found.members.rows
        inside = np.isin(table.gpu[rows[members]], gpus)
        members = members[inside & np.isin(table.iteration[rows[members]], iterations)]
        rows = rows[members]
        whose = np.searchsorted(gpus, table.gpu[rows])
        when = np.searchsorted(iterations, table.iteration[rows])
        teams, team = ranked(self.team[self.found.member_set[members]])
        shape = (len(teams), len(gpus), len(iterations))
        place = (team * shape[1] + whose) * shape[2] + when
        late = sums_of(self.late_ns[members], place, int(np.prod(shape)))
        found = np.zeros(shape[1:])
        takes_part = counts_of(team * shape[1] + whose, shape[0] * shape[1])
        kin = self.kin[list(gpus)]
        for own, there in zip(late.reshape(shape), takes_part.reshape(shape[:2]), strict=True):
            for number in distinct(kin).tolist():
                at = np.flatnonzero((there > 0) & (kin == number))
                if len(at) >= _MIN_PEERS:
                    found[at] = np.maximum(found[at], beyond_others(own[at]))
        return found


def lateness_of(run: Run, found: Collectives, peers: tuple[tuple[int, ...], ...]) -> Lateness:
    return run.memo(("lateness", peers), lambda: _lateness(found, peers), keep=1)


def _lateness(found: Collectives, peers: tuple[tuple[int, ...], ...]) -> Lateness:
    table, rows = found.members.table, found.members.rows
    first = run_starts(found.member_set)
    team = ranked(run_sums(hashes(int(table.gpu.max()) + 1)[table.gpu[rows]], first))[1]
    start = table.start_ns[rows]
    # Arrivals as they would be, had the GPU not communicated with others in between.
    fair = start - _exposed_elsewhere(table, rows, team[found.member_set])
    kin = np.zeros(int(table.gpu.max()) + 1, np.int64)
    for number, gpus in enumerate(peers):
        kin[list(gpus)] = number
    side = ranked(found.member_set * len(peers) + kin[table.gpu[rows]])[1]
    begin = run_starts(side[stable_order(side)])
    sizes = run_sizes(begin, len(rows))
    middle = begin + (sizes - 1) // 2
    usual, usual_start = (values[np.lexsort((values, side))][middle] for values in (fair, start))
    reach = found.last_start_ns[found.member_set] - usual_start[side]
    late = np.minimum(np.maximum(fair - usual[side], 0), reach)
    late[sizes[side] < _MIN_PEERS] = 0
    waits, exposed = (
        run_sums(values, first).astype(np.float64)
        for values in (found.member_wait_ns, found.member_exposed_ns)
    )
    share = np.divide(exposed, waits, out=np.zeros(len(first)), where=waits > 0)
    # A stage of a pipeline waits for the stage before it by design.
    pairwise = [code for code, name in enumerate(table.operations) if name == PAIRWISE]
    share[np.isin(found.kind, pairwise)] = 0.0
    return Lateness(found, team, kin, np.rint(late * share[found.member_set]).astype(np.int64))


def _exposed_elsewhere(table: KernelTable, rows: Index, team: Index) -> Int64:
    """Exposed communication with other teams since the GPU's last collective of the team."""
    gpu, exposed = table.gpu[rows].astype(np.int64), table.exposed_comm_ns[rows]
    order = stable_order(table.start_ns[rows])
    everything = _before(gpu, exposed, order)
    lane = gpu * (int(team.max(initial=0)) + 1) + team
    elsewhere = everything - _before(lane, exposed, order)
    order = order[stable_order(lane[order])]
    since = elsewhere[order].copy()
    since[1:] -= np.where(lane[order][1:] == lane[order][:-1], elsewhere[order][:-1], 0)
    result = np.empty(len(rows), np.int64)
    result[order] = since
    return result


def _before(lane: Int64, values: Int64, order: Index) -> Int64:
    order = order[stable_order(lane[order])]
    sums = np.cumsum(values[order]) - values[order]
    first = run_starts(lane[order])
    sizes = run_sizes(first, len(order))
    result = np.empty(len(values), np.int64)
    result[order] = sums - np.repeat(sums[first], sizes)
    return result


_MIN_PERIODIC: Final = 3
"""Recurrences from which on equal distances are a period."""
_MOST_NAMED: Final = 5
"""Of more iterations a sentence names so many."""


def recurrence(when: Sequence[int], iterations: Sequence[int]) -> str:
    """When a thing happens that is seen in some of the iterations, as the end of a phrase.

    `when` are places in `iterations`, in order. Empty where it is in all of them.
    """
    count, numbers = len(iterations), [iterations[place] for place in when]
    steps = set(np.diff(when).tolist())
    if len(when) >= count or not numbers:
        return ""
    if len(when) == 1:
        return f" in iteration {numbers[0]}"
    if steps == {1} and when[-1] == count - 1:
        return f" since iteration {numbers[0]}"
    if steps == {1} and when[0] == 0:
        return f" until iteration {numbers[-1]}"
    if len(when) >= _MIN_PERIODIC and len(steps) == 1 and steps != {1}:
        return f" every {steps.pop()} iterations, from iteration {numbers[0]} on"
    if len(numbers) > _MOST_NAMED:
        named = ", ".join(map(str, numbers[:_MOST_NAMED]))
        more = len(numbers) - _MOST_NAMED
        return f" in {len(numbers)} of {count} iterations: {named} and {more} more"
    return f" in iterations {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
