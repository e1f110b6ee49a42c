"""Where the GPUs of a scope stand against each other: leads, waits, and why one is behind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from chopper_core.analyses.collective_figures import Chosen, chosen_in
from chopper_core.analyses.groups import grouped
from chopper_core.analyses.matching import collectives_of
from chopper_core.analyses.occurrences import (
    Occurrences,
    cut_iterations,
    occurrences_of,
    within,
)
from chopper_core.errors import UsageError
from chopper_core.metrics import METRICS, Scope
from chopper_core.run import Run
from chopper_core.schema import ACTIVITY, KernelTable, Kind
from chopper_core.tree import Groups
from chopper_core.view import View, complete_order

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Index = NDArray[np.intp]

SHARE_THAT_COUNTS: Final = 0.01
"""What is less of the iteration's time is no cause."""
CLOCK_THAT_COUNTS: Final = 0.99
"""A clock below this part of the others' median is a lower one."""
_LEAD_THAT_COUNTS: Final = 0.002
"""Leads below this share of the iteration are nobody's fault."""
_ONSET: Final = 0.1
"""The share of the largest mean lead from which on a GPU is behind."""


@dataclass(frozen=True, eq=False)
class Standing:
    """The GPUs of a scope, side by side; arrays have one value per GPU of `gpus`."""

    run: Run
    node: Groups
    """The rows of the scope on all GPUs, but those of iterations that are left out."""
    left_out: tuple[int, ...]
    found: Occurrences
    collectives: Chosen | None
    lead_ns: Int64
    iterations: tuple[int, ...]
    iteration_ns: Int64
    """Elapsed time of each GPU (rows) in each iteration (columns), -1 where it has none."""
    work_ns: Float64
    """Durations of the matched compute, per iteration."""
    host_ns: Float64
    """Idle time before launch calls, per iteration."""
    launch_ns: Float64
    """The rest of the idle time, per iteration."""
    mhz: Float64
    """NaN where it isn't known."""

    @property
    def table(self) -> KernelTable:
        """The run's kernel table."""
        return self.run.table

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs with compute."""
        return self.found.gpus

    @property
    def behind(self) -> int:
        """The place of the GPU with the least lead."""
        return int(self.lead_ns.argmin())

    @property
    def ahead_ns(self) -> float:
        """How much earlier than the one behind the others start a kernel, on average."""
        others = np.delete(self.lead_ns, self.behind).mean() - self.lead_ns[self.behind]
        return float(others) / max(len(self.found), 1)

    @property
    def typical_ns(self) -> float:
        """The median over iterations of the longest GPU's time."""
        return float(np.median(self.iteration_ns.max(axis=0)))

    @property
    def holds_back(self) -> bool:
        """Whether the GPU behind is so far behind that it matters."""
        return self.ahead_ns > _LEAD_THAT_COUNTS * self.typical_ns

    def causes(self) -> list[str | None]:
        """Why each GPU is behind the others; None where nothing sets it apart."""
        words = ("work", "host", "launch")
        extra = np.stack([beyond_others(x) for x in (self.work_ns, self.host_ns, self.launch_ns)])
        largest = extra.argmax(axis=0)
        counts = extra.max(axis=0) > SHARE_THAT_COUNTS * self.typical_ns
        slow = self.mhz < CLOCK_THAT_COUNTS * others_median(self.mhz)
        found: list[str | None] = []
        for place, word in enumerate(words[row] for row in largest.tolist()):
            if not counts[place]:
                found.append(None)
            elif word == "work":
                found.append("clock" if slow[place] else "kernels")
            else:
                found.append(word)
        return found

    def onset(self) -> tuple[str, str] | None:
        """The first phase and layer of the step from which on the others lead."""
        first = self.found.rows[:, 0]
        keys = (self.table.phase[first], self.table.layer[first])
        names, cell = np.unique(np.stack(keys), axis=1, return_inverse=True)
        cell = cell.ravel()
        count = np.bincount(cell)
        lead = others_lead(self.found, self.behind)
        mean = np.bincount(cell, weights=lead) / count
        behind = _by_code(cell, self.found.lead_ns, len(count)).argmin(axis=1) == self.behind
        late = behind & (mean >= _ONSET * mean.max()) & (mean > 0)
        if not late.any():
            return None
        # The step's order is that of the mean places of the cells in their iterations.
        since = np.bincount(cell, weights=self.places()) / count
        chosen = int(np.where(late, since, np.inf).argmin())
        phase, layer = (int(code) for code in names[:, chosen])
        return self.table.text_of("phase", phase), self.table.text_of("layer", layer)

    def places(self) -> Float64:
        """When each occurrence starts on the last GPU, as a share of its iteration's time."""
        iteration = self.table.iteration[self.found.rows[:, 0]]
        share = np.zeros(len(iteration))
        for number in np.unique(iteration).tolist():
            own = iteration == number
            start = self.found.last_start_ns[own]
            share[own] = (start - start.min()) / max(int(np.ptp(start)), 1)
        return share


def standing(run: Run, view: View) -> tuple[Standing, View]:
    """The GPUs in a view's scope, and the view without a GPU of its own; raises UsageError."""
    view = of_all_gpus(view)
    node = run.tree(view.order).node(view.path)
    everywhere = occurrences_of(run)
    if len(everywhere.gpus) < 2:
        raise UsageError("the run has compute on one GPU only: there is none to compare it with")
    found = within(run, everywhere, node)
    if not len(found):
        raise UsageError("no compute here runs on all GPUs: there is nothing to compare them by")
    table, left_out = run.table, np.array(sorted(cut_iterations(run)), np.int64)
    cut = np.isin(table.iteration[found.rows[:, 0]], left_out)
    kept = node.rows
    if cut.any() and not cut.all():
        found = found.take(~cut)
        kept = kept[~np.isin(table.iteration[kept], left_out)]
    else:
        left_out = left_out[:0]
    node = Groups(table, kept, np.zeros(1, np.intp))
    return _stand(run, node, tuple(left_out.tolist()), found), view


def of_all_gpus(view: View) -> View:
    """The same scope on all GPUs, of which an activity is the kernel that it is of."""
    levels = [(level, label) for level, label in view.scope if level not in ("gpu", ACTIVITY)]
    if len(levels) == len(view.path):
        return view
    return replace(
        view,
        path=tuple(label for _, label in levels),
        order=complete_order([level for level, _ in levels]),
    )


def _stand(run: Run, node: Groups, left_out: tuple[int, ...], found: Occurrences) -> Standing:
    table, gpus = run.table, np.array(found.gpus)
    rows = node.rows[np.isin(table.gpu[node.rows], gpus)]
    iterations = np.unique(table.iteration[found.rows[:, 0]])
    rows = rows[np.isin(table.iteration[rows], iterations)]
    gpu = np.searchsorted(gpus, table.gpu[rows])
    place = np.searchsorted(iterations, table.iteration[rows])
    codes, cells = grouped(Groups(table, rows, np.zeros(1, np.intp)), gpu * len(iterations) + place)
    elapsed = np.full(len(gpus) * len(iterations), -1, np.int64)
    elapsed[codes] = cells.max("end_ns") - cells.min("start_ns")
    count = len(iterations)

    def per_iteration(*columns: str) -> Float64:
        total = sum(table.column(name)[rows].astype(np.float64) for name in columns)
        return np.bincount(gpu, weights=total, minlength=len(gpus)) / count

    _, by_gpu = grouped(Groups(table, rows, np.zeros(1, np.intp)), gpu.astype(np.int64))
    known = collectives_of(run)
    clock = METRICS["gfx_mhz"].compute(Scope(by_gpu, node, run.origin_ns, run.hardware))
    return Standing(
        run=run,
        node=node,
        left_out=left_out,
        found=found,
        collectives=None if known is None else chosen_in(run, known, node),
        lead_ns=found.lead_ns.sum(axis=0),
        iterations=tuple(int(number) for number in iterations),
        iteration_ns=elapsed.reshape(len(gpus), count),
        work_ns=table.duration_ns[found.rows].sum(axis=0) / count,
        host_ns=per_iteration("idle_host_ns"),
        launch_ns=per_iteration("idle_launch_ns", "idle_unknown_ns"),
        mhz=np.where(clock.present(), clock.numbers, np.nan).astype(np.float64),
    )


def others_median(values: NDArray[np.generic]) -> Float64:
    """For each value the median of the others along the first axis, NaNs aside."""
    numbers = np.asarray(values, np.float64)
    order = np.argsort(numbers, axis=0, kind="stable")
    ordered = np.take_along_axis(numbers, order, axis=0)
    rank = np.empty_like(order)
    places = np.arange(len(numbers)).reshape(-1, *(1,) * (numbers.ndim - 1))
    np.put_along_axis(rank, order, np.broadcast_to(places, order.shape), axis=0)
    known = np.isfinite(numbers)
    # NaNs come last; each value is skipped among the known ones.
    left = known.sum(axis=0) - known

    def pick(place: Index) -> Float64:
        skipped = place + (known & (rank <= place))
        return np.take_along_axis(ordered, np.clip(skipped, 0, len(numbers) - 1), axis=0)

    middle = (pick((left - 1) // 2) + pick(left // 2)) / 2
    return np.where(left > 0, middle, np.nan)


def beyond_others(values: NDArray[np.generic]) -> Float64:
    """Each value less the median of the others."""
    return np.asarray(values, np.float64) - others_median(values)


def others_lead(found: Occurrences, place: int) -> Float64:
    """How much earlier than one GPU the others start each occurrence, mean over them."""
    others = found.lead_ns.sum(axis=1) - found.lead_ns[:, place]
    mean: Float64 = others / (len(found.gpus) - 1) - found.lead_ns[:, place]
    return mean


def lead_changes(stand: Standing) -> Float64:
    """By how much the others' lead grows from each occurrence to the next of its iteration."""
    found = stand.found
    lead = others_lead(found, stand.behind)
    iteration = stand.table.iteration[found.rows[:, 0]]
    # Occurrences are in order of time, and stay so within an iteration.
    order = np.argsort(iteration, kind="stable")
    ordered, same = lead[order], iteration[order][1:] == iteration[order][:-1]
    change = np.zeros(len(lead))
    change[order[:-1][same]] = (ordered[1:] - ordered[:-1])[same]
    return change


def _by_code(codes: Index, leads: Int64, count: int) -> Float64:
    """Sums of leads, as codes x GPUs."""
    gpus = leads.shape[1]
    cell = codes[:, None] * gpus + np.arange(gpus)
    sums = np.bincount(cell.ravel(), weights=leads.ravel(), minlength=count * gpus)
    return sums.astype(np.float64).reshape(count, gpus)


def leads_by(codes: Index, found: Occurrences, count: int) -> tuple[Float64, Int64]:
    """Sums of leads by a code per occurrence, as codes x GPUs, and how many occurrences."""
    return _by_code(codes, found.lead_ns, count), np.bincount(codes, minlength=count)


def unmatched_compute(stand: Standing) -> int:
    """How many compute activities of the scope are not among the matched."""
    rows = stand.node.rows
    compute = int((stand.table.kind[rows] == Kind.COMPUTE).sum())
    return compute - stand.found.rows.size
