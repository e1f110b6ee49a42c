"""The base of figures that add up: per step and GPU, or in total.

A figure that adds up is divided by the number of pairs of a GPU and a complete step in the
scope of its row. Only a GPU or a step that the path or the row names restricts the pairs, so
that rows of layers, operations or kernels add up to their total, and the total of GPUs or
steps is their mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import Final, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.columns import Reduces, Values
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL
from chopper_core.model.view import View, baseline_view
from chopper_core.util.arrays import Float64, Int64, Mask
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import distinct, first_equal, isin

NODE: Final = "node"
"""The split by host."""
PAIR: Final = ("gpu", "iteration")
_WORDS: Final = {"gpu": "GPUs", "iteration": "steps", NODE: "nodes"}
_CYCLE: Final = "iteration%"
Amount = TypeVar("Amount", float, Int64 | Float64)


class Base(Struct, frozen=True, eq=False, dict=True):
    """The pairs of a GPU and a step in the scope of a view."""

    run: Run
    cells: Groups
    """All pairs of the run."""
    within: Mask
    """Those that the path names."""
    others: Mask
    """Those whose step the path names, on any GPU."""
    complete: Mask
    """Those whose step takes part in figures of several."""
    is_total: bool = False
    is_itself: bool = False
    """Whether each row is one thing at one time."""
    on_gpus: bool = False
    """Whether that is on several GPUs, which figures that add up are summed over."""
    is_applied: bool = False
    """Whether figures are on it already."""
    is_of_step: bool = False
    """Whether figures are of the step, on whichever GPUs each is about."""

    @property
    def applied(self) -> Base:
        return replace(self, is_applied=True)

    @property
    def itself(self) -> Base:
        return replace(self, is_itself=True)

    def of_iterations(self, iterations: Sequence[int]) -> Base:
        """The base of figures of some of the steps."""
        return replace(
            self, complete=self.complete & isin(self.cells.codes("iteration"), iterations)
        )

    def of_gpus(self, gpus: Collection[int]) -> Base:
        """The base of figures of some of the GPUs."""
        there = isin(self.cells.codes("gpu"), list(gpus))
        return replace(self, within=self.within & there, others=self.others & there)

    @property
    def counted(self) -> Mask:
        """The pairs that figures are per."""
        return self.within & self.complete

    @property
    def pairs(self) -> int:
        return max(int(self.counted.sum()), 1)

    @property
    def text(self) -> str:
        """What figures that add up are: `per step and GPU`, `total of 8 GPUs × 2 steps`."""
        if self.is_itself:
            return "sum over the GPUs of each" if self.on_gpus else ""
        gpus, steps = (distinct(self.cells.codes(level)[self.counted]).tolist() for level in PAIR)
        is_run = steps in ([], [NO_LABEL])
        if self.pairs == 1:
            return "whole run" if is_run else "one step"
        if self.is_total:
            sizes = {"GPU": len(gpus), "step": 0 if is_run else len(steps)}
            several = (f"{size:,} {word}s" for word, size in sizes.items() if size > 1)
            return f"total of {' × '.join(several)}"
        if is_run:
            return "whole run, per GPU"
        return "per step and GPU" if len(gpus) > 1 and not self.is_of_step else "per step"

    @property
    def words(self) -> str:
        """The same after a figure in a sentence: ` per step`, ` in total over 8 GPUs × 2 steps`."""
        text = self.text.removeprefix("whole run, ").replace("total of", "in total over")
        return "" if text in ("", "one step", "whole run") else f" {text}"

    def each(self, amount: Amount) -> Amount:
        """A figure of the whole scope that adds up, on this base."""
        return amount / self.pairs if self._divides else amount

    @property
    def _divides(self) -> bool:
        return not (self.is_total or self.is_itself or self.is_applied)

    def is_mean_of(self, level: str, rows: Sequence[str]) -> bool:
        """Whether the total row of a level is the mean of its rows."""
        is_mean = not (self.is_total or self.is_itself) and is_of_steps(self.run, level)
        return is_mean and len(rows) > 1

    def total_title(self, level: str, rows: Sequence[str]) -> str:
        """The title of the total row: `mean of 4 GPUs` where some of these have no row."""
        if not self.is_mean_of(level, rows):
            return "total"
        names = {*compress(self._names(level), self.counted.tolist())}
        if names <= {*rows}:
            return "mean"
        return f"mean of {len(names)} {_WORDS.get(level, '')}".rstrip()

    def of_rows(
        self,
        labels: Mapping[str, Sequence[str]],
        gpus: Collection[int] | None = None,
        reduces: Reduces = Reduces.SUM,
    ) -> Int64:
        """What figures of rows that add up are divided by; rows have labels at each level.

        `gpus` are those that have the figure. Figures of other GPUs are a part of all of them, and
        those of steps are per step.
        """
        size = len(next(iter(labels.values())))
        if not self._divides:
            return np.ones(size, np.int64)
        levels = [level for level in labels if is_of_steps(self.run, level)]
        chosen = self.within
        if reduces != Reduces.SUM:
            chosen, levels = self.others, [each for each in levels if each.startswith(PAIR[1])]
        if gpus is not None:
            chosen = chosen & isin(self.cells.codes("gpu"), list(gpus))
        # An iteration that takes no part in the total has figures of its own.
        if "iteration" not in levels:
            chosen = chosen & self.complete
        if reduces == Reduces.STEPS:
            there = np.flatnonzero(chosen)
            steps = self.cells.codes("iteration")[there].astype(np.int64)
            chosen = isin(np.arange(len(chosen)), there[first_equal(steps, distinct(steps))])
        if not levels:
            return np.full(size, max(int(chosen.sum()), 1))
        key: tuple[str | bytes, ...] = (*levels, chosen.tobytes())
        if (found := self._counts.get(key)) is None:
            names = zip(*map(self._names, levels), strict=True)
            found = self._counts[key] = Counter(compress(names, chosen.tolist()))
        rows = zip(*(labels[level] for level in levels), strict=True)
        return np.array([found.get(row, 1) for row in rows], np.int64)

    @cached_property
    def _counts(self) -> dict[tuple[str | bytes, ...], Counter[tuple[str, ...]]]:
        """By levels and the pairs that count: those of each name. Most columns count the same."""
        return {}

    def _names(self, level: str) -> Sequence[str]:
        """The label of each pair of the run at a level."""
        return self.run.memo(("names of pairs", level), lambda: self._texts(level))

    def _texts(self, level: str) -> Sequence[str]:
        codes, table = self.cells.codes("gpu" if level == NODE else level).tolist(), self.run.table
        if level == NODE:
            return node_labels(self.run, codes)
        texts = {code: table.text_of(level, code) for code in set(codes)}
        return [texts[code] for code in codes]


def base_of(run: Run, view: View) -> Base:
    """The base of a view's figures, found once; raises NoSuchNode."""
    key = ("base", view.order, view.path, view.cut, view.is_total)
    return run.memo(key, lambda: _base(run, view))


def base_of_steps(run: Run, view: View) -> Base:
    """The base of figures that are per step and GPU whatever the view asks for."""
    return base_of(run, replace(view, is_total=False)).applied


def _base(run: Run, view: View) -> Base:
    if not len(run.table):
        none = np.zeros(0, np.bool_)
        nothing = Groups.single(run.table, slice(0, 0))
        return Base(run, nothing, none, none, none, is_itself=True)
    cells = run.pairs
    within, others = np.ones((2, len(cells)), np.bool_)
    for level, label in view.scope:
        if is_of_steps(run, level):
            named = cells.codes(level) == run.table.code_of(level, label)
            within &= named
            others &= named | (not level.startswith(PAIR[1]))
    steps = cells.codes("iteration")
    cut = () if run.takes_truncated(view) else sorted(run.cut_of(view))
    complete = ~isin(steps, np.array(cut, np.int64))
    # What runs outside of iterations is no step.
    in_steps = complete & (steps != NO_LABEL)
    if (in_steps & within).any():
        complete = in_steps
    return Base(run, cells, within, others, complete, view.is_total)


def baseline_of(run: Run, view: View) -> tuple[Run, View]:
    """The run and the node that a view is compared with; raises UsageError for a closed run."""
    there = replace(baseline_view(view), name="", by="", of="")
    return run if there.run == view.run else run.baseline_run(there.run), there


def pair_codes(pairs: Groups) -> Int64:
    """A number for the GPU and step of each of some groups."""
    return (pairs.codes("gpu").astype(np.int64) << 32) + pairs.codes("iteration")


def divided(values: Values, by: Int64) -> Values:
    return values if (by == 1).all() else replace(values, numbers=values.numbers / by)


def other_total(ours: Base, base: Base) -> list[str]:
    """A note on totals that are over other GPUs and steps than those of the baseline."""
    if not ours.is_total or ours.pairs == base.pairs:
        return []
    return [f"{ours.text} here, {base.text} in the baseline: differences include their number"]


def is_of_steps(run: Run, level: str) -> bool:
    """Whether GPUs and steps have labels at a level, not what runs in a step."""
    return level in (*PAIR, NODE, *run.table.coordinates) or level.startswith(_CYCLE)


def node_labels(run: Run, gpus: Sequence[int]) -> list[str]:
    """The node of each GPU: its host, else one by the numbers of the devices, else `unknown`."""
    from chopper_core.graph.process_groups import nodes_of  # few views have nodes

    return [name or "unknown" for name in nodes_of(run, gpus)[0]]


def node_names(run: Run, gpus: Sequence[int]) -> list[str]:
    """As `node_labels`; raises NothingToShow where the node of no GPU is known."""
    names = node_labels(run, gpus)
    if {*names} <= {"unknown"}:
        raise NothingToShow(
            "neither the traces, nor their file names, nor the numbers of the devices give the "
            "nodes of the GPUs; torch.profiler.tensorboard_trace_handler names files by host"
        )
    return names
