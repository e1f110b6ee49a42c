"""Leads of the GPUs of a scope: who starts the same kernels later, since when, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import METRICS, Scope
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import ACTIVITY, KernelTable
from chopper_core.model.view import View, complete_order
from chopper_core.util.arrays import Float64, Index, Int64, Numbers
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import ranked, run_starts, stable_order
from chopper_core.views.shared.collective_figures import Chosen, chosen_in
from chopper_core.views.shared.collectives import collectives_of
from chopper_core.views.shared.matched_kernels import (
    Occurrences,
    compared_iterations,
    cut_iterations,
    occurrences_of,
    within,
)

MIN_CAUSE_SHARE: Final = 0.01
"""A smaller share of the iteration's time is no cause."""
LOW_CLOCK_RATIO: Final = 0.99
"""A clock below this part of the others' median is a lower one."""
_MIN_LAG_SHARE: Final = 0.002
"""Smaller leads, as a share of the iteration, make no straggler."""
_MIN_RUN: Final = 4
"""Neighbouring occurrences of one label from which on they are added up together."""
_ONSET_SHARE: Final = 0.1
"""The share of the largest mean lead from which the lag begins."""


class RankLeads(Struct, frozen=True, eq=False):
    """The GPUs of a scope, side by side; arrays have one value per GPU of `gpus`."""

    run: Run
    node: Groups
    """The scope on all GPUs, without iterations that are left out or have nothing matched."""
    view: View
    without: Mapping[str, Sequence[int]]
    """Codes by level that are left out of it."""
    left_out: tuple[int, ...]
    compared: tuple[int, int] | None
    """How many iterations of how many are compared, where they are too many."""
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

    def split(self, level: str) -> Groups:
        """The scope by the labels of a level."""
        return self.run.tree(self.view.order).split(self.view.path, (level,), self.without)

    @property
    def behind(self) -> int:
        """The place of the GPU with the least lead."""
        return int(self.lead_ns.argmin())

    @property
    def ahead_ns(self) -> float:
        """How much earlier than the straggler the others start a kernel, on average."""
        others = np.delete(self.lead_ns, self.behind).mean() - self.lead_ns[self.behind]
        return float(others) / max(len(self.found), 1)

    @property
    def typical_ns(self) -> float:
        """The median over iterations of the longest GPU's time."""
        return float(np.median(self.iteration_ns.max(axis=0)))

    @property
    def is_straggler(self) -> bool:
        """Whether the last GPU's lag is large enough to matter."""
        return self.ahead_ns > _MIN_LAG_SHARE * self.typical_ns

    def causes(self) -> list[str | None]:
        """Why each GPU lags; None without a cause."""
        words = ("work", "host", "launch")
        extra = np.stack([beyond_others(x) for x in (self.work_ns, self.host_ns, self.launch_ns)])
        largest = extra.argmax(axis=0)
        counts = extra.max(axis=0) > MIN_CAUSE_SHARE * self.typical_ns
        slow = self.mhz < LOW_CLOCK_RATIO * others_median(self.mhz)
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
        phase, layer = (
            self.table.column(level)[first].astype(np.int64) for level in ("phase", "layer")
        )
        width = int(layer.max()) + 2
        # A missing label has the code -1.
        code = (phase + 1) * width + layer + 1
        there = np.bincount(code) > 0
        names = np.flatnonzero(there)
        cell = (np.cumsum(there) - 1)[code]
        count = np.bincount(cell)
        lead = others_lead(self.found, self.behind)
        mean = np.bincount(cell, weights=lead) / count
        behind = sums_by(cell, self.found.lead_ns.T, len(count)).argmin(axis=1) == self.behind
        late = behind & (mean >= _ONSET_SHARE * mean.max()) & (mean > 0)
        if not late.any():
            return None
        # The step's order is that of the mean places of the cells in their iterations.
        since = np.bincount(cell, weights=self.places()) / count
        chosen = int(np.where(late, since, np.inf).argmin())
        at_phase, at_layer = divmod(int(names[chosen]), width)
        return (
            self.table.text_of("phase", at_phase - 1),
            self.table.text_of("layer", at_layer - 1),
        )

    def places(self) -> Float64:
        """When each occurrence starts on the last GPU, as a share of its iteration's time."""
        iteration = self.table.iteration[self.found.rows[:, 0]]
        order = stable_order(iteration)
        start = self.found.last_start_ns[order]
        # Occurrences are in order of time, and stay so within an iteration.
        first = np.flatnonzero(np.diff(iteration[order], prepend=iteration[order][:1] - 1))
        number = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
        begin, end = start[first], start[np.append(first[1:], len(order)) - 1]
        share = np.empty(len(order))
        share[order] = (start - begin[number]) / np.maximum(end - begin, 1)[number]
        return share


def leads(run: Run, view: View) -> tuple[RankLeads, View]:
    """The GPUs in a view's scope, and the view without a GPU of its own; raises UsageError."""
    view = of_all_gpus(view)
    node = run.tree(view.order).node(view.path)
    compared = compared_iterations(run, view)
    everywhere = occurrences_of(run, compared)
    if len(everywhere.gpus) < 2:
        raise UsageError("the run has compute on one GPU only; ranks compares several")
    found = within(run, everywhere, node) if view.path else everywhere
    if not len(found):
        raise UsageError(
            "no compute kernel of the scope runs on all GPUs, so they can't be compared"
        )
    left_out = sorted(cut_iterations(run)) if not compared else []
    if left_out:
        cut = np.isin(run.table.iteration[found.rows[:, 0]], left_out)
        if cut.all() or not cut.any():
            left_out = []
        else:
            found = found.take(~cut)
    return _stand(run, view, node, (tuple(left_out), compared), found), view


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


def _stand(
    run: Run,
    view: View,
    node: Groups,
    chosen: tuple[tuple[int, ...], tuple[int, ...]],
    found: Occurrences,
) -> RankLeads:
    left_out, compared = chosen
    table, gpus = run.table, np.array(found.gpus)
    seen = ranked(table.iteration[found.rows[:, 0]])[0]
    there = run.tree(view.order).split(view.path, ("iteration",)).codes("iteration")
    without = {
        "gpu": [gpu.index for gpu in run.gpus if gpu.index not in found.gpus],
        "iteration": [*left_out, *sorted(set(there.tolist()) - set(seen.tolist()))],
    }
    without = {level: codes for level, codes in without.items() if codes}

    tree = run.tree(view.order)
    cells = tree.split(view.path, ("gpu", "iteration"), without)
    by_gpu = tree.split(view.path, ("gpu",), without)
    place = np.searchsorted(gpus, cells.codes("gpu"))
    elapsed = np.full((len(gpus), len(seen)), -1, np.int64)
    elapsed[place, np.searchsorted(seen, cells.codes("iteration"))] = cells.max(
        "end_ns"
    ) - cells.min("start_ns")
    whose = np.searchsorted(gpus, by_gpu.codes("gpu"))

    def per_iteration(*columns: str) -> Float64:
        total = np.zeros(len(gpus))
        for name in columns:
            total[whose] += by_gpu.sum(name)
        return total / len(seen)

    known = collectives_of(run)
    whole = tree.split(view.path, (), without)
    clock = METRICS["gfx_mhz"].compute(Scope(by_gpu, whole, run.origin_ns, run.hardware))
    mhz = np.full(len(gpus), np.nan)
    mhz[whose] = np.where(clock.present(), clock.numbers, np.nan)
    return RankLeads(
        run=run,
        node=whole,
        view=view,
        without=without,
        left_out=left_out,
        compared=(len(compared), len(there)) if compared else None,
        found=found,
        collectives=None
        if known is None
        else chosen_in(run, known, node, without.get("iteration", ())),
        lead_ns=found.lead_ns.sum(axis=0),
        iterations=tuple(int(number) for number in seen),
        iteration_ns=elapsed,
        work_ns=np.array([own.sum() for own in found.durations_ns()]) / len(seen),
        host_ns=per_iteration("idle_host_ns"),
        launch_ns=per_iteration("idle_launch_ns", "idle_unknown_ns"),
        mhz=mhz,
    )


def others_median(values: Numbers) -> Float64:
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


def beyond_others(values: Numbers) -> Float64:
    """Each value less the median of the others."""
    return np.asarray(values, np.float64) - others_median(values)


def others_lead(found: Occurrences, place: int) -> Float64:
    """How much earlier than one GPU the others start each occurrence, mean over them."""
    others = found.lead_ns.sum(axis=1) - found.lead_ns[:, place]
    mean: Float64 = others / (len(found.gpus) - 1) - found.lead_ns[:, place]
    return mean


def lead_changes(stand: RankLeads) -> Float64:
    """By how much the others' lead grows from each occurrence to the next of its iteration."""
    found = stand.found
    lead = others_lead(found, stand.behind)
    iteration = stand.table.iteration[found.rows[:, 0]]
    # Occurrences are in order of time, and stay so within an iteration.
    order = stable_order(iteration)
    ordered, same = lead[order], iteration[order][1:] == iteration[order][:-1]
    change = np.zeros(len(lead))
    change[order[:-1][same]] = (ordered[1:] - ordered[:-1])[same]
    return change


def sums_by(codes: Index, values: Iterable[Int64], count: int) -> Float64:
    """Sums of a figure of the occurrences, GPU by GPU, as codes x GPUs."""
    first = run_starts(codes)
    if len(codes) and _MIN_RUN * len(first) < len(codes):
        # Neighbours of one code are added up sooner than dealt out.
        codes, values = codes[first], (np.add.reduceat(own, first) for own in values)
    sums = [np.bincount(codes, weights=own, minlength=count) for own in values]
    return np.stack(sums, axis=1).astype(np.float64)


def leads_by(codes: Index, found: Occurrences, count: int) -> tuple[Float64, Int64]:
    """Sums of leads by a code per occurrence, as codes x GPUs, and how many occurrences."""
    return sums_by(codes, found.lead_ns.T, count), np.bincount(codes, minlength=count)


def unmatched_compute(stand: RankLeads) -> int:
    """How many compute activities of the scope are not among the matched."""
    node = stand.node
    others = node.sum("collectives")[0] + node.sum("copies")[0]
    return int(node.sizes()[0] - others) - stand.found.rows.size
