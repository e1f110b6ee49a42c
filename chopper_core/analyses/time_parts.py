"""The parts of elapsed time: theoretical time at peak, and loss by loss up to the measured time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.columns import METRICS, Scope, Values
from chopper_core.columns.metric import Theme, quotient
from chopper_core.model.column_names import (
    AT_PEAK,
    BREAKDOWN,
    FLOPS,
    FLOPS_TYPE,
    RECOMPUTED,
    RECOMPUTED_AT_PEAK,
)
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import STATE_TITLES
from chopper_core.model.tree import Tree
from chopper_core.util.arrays import Float64, Int64, Mask
from chopper_core.util.grouping import isin, ratios, sums_of
from chopper_core.work.kernel_classes import ATTENTION_CLASS, kernel_classes

THEORY: Final = "theoretical_ns"
LOSSES: Final = {
    RECOMPUTED: "recomputation",
    "extra_inst_ns": "extra instructions",
    "mfma_loss_ns": "idle matrix units",
    "vector_ns": "vector work",
    "contention_ns": "contention",
    "frequency_ns": "low clock",
    "unseparated_ns": "possibly low clock",
    "unmodelled_ns": "not explained",
    **{name: STATE_TITLES[name] for name in ("exposed_comm_ns", "exposed_copy_ns", "idle_ns")},
}
"""The losses between ideal and elapsed time, in the order of the waterfall."""
TITLES: Final = {THEORY: "ideal", **LOSSES}
TERMS: Final = tuple(TITLES)
UNKNOWN: Final = "unmodelled_ns"
_MATRIX: Final = ("gemm", "convolution", ATTENTION_CLASS)
_MAX_UNKNOWN_FLOPS_PCT: Final = 5.0
"""Of the time of matrix kernels: with more unknown, the share of the peak isn't shown."""


class TimeParts(Struct, frozen=True):
    """The parts of each node's time, in ns, which add up to it."""

    values: dict[str, Values]
    elapsed_ns: Int64
    divided_ns: Mapping[str, Float64] = {}
    """Part → its time where only some of a node's GPUs distinguish it (`divided_as`), else NaN."""
    model_x: Float64 | float = 1.0
    all_x: Float64 | float = 1.0
    """How many times their charged parts the times at peak of the model's FLOPs are, and of all:
    while two kernels compute, time is charged to one, but the FLOPs are those of both."""

    def numbers(self, name: str) -> Int64:
        """A part as the GPUs have it, 0 where it is unknown: its time is in another part."""
        values = self.values[name]
        return np.where(values.present(), values.numbers, 0).astype(np.int64)

    def is_divided(self, name: str) -> Mask:
        found: Mask = np.isfinite(self.divided_ns.get(name, np.full(len(self.elapsed_ns), np.nan)))
        return found

    def ns(self, name: str) -> Float64:
        """A part of every node; 0 where it is unknown."""
        own = self.numbers(name).astype(np.float64)
        return np.where(self.is_divided(name), self.divided_ns.get(name, own), own)

    def known(self, name: str) -> Values:
        is_divided = self.is_divided(name)
        return Values(self.ns(name), ~(self.values[name].present() | is_divided), is_divided)

    def share(self, name: str) -> Values:
        found = self.known(name)
        return replace(
            quotient(found.known(), self.elapsed_ns, 100.0), extrapolated=found.extrapolated
        )

    def utilization(self) -> Values:
        """MFU: the time of the model's FLOPs at peak, in % of the time."""
        found = self.share(THEORY)
        return replace(found, numbers=found.numbers * self.model_x)

    def hardware_utilization(self) -> Values:
        """HFU: the same with the FLOPs of recomputation."""
        model, again = self.share(THEORY), self.share(RECOMPUTED)
        marked = [each.extrapolated for each in (model, again) if each.extrapolated is not None]
        either = np.any(marked, axis=0) if marked else None
        numbers = (model.known() + again.known(0.0)) * self.all_x
        return Values(numbers, ~model.present(), either)


def parts_of(run: Run, nodes: Groups, names: Sequence[str] = TERMS) -> TimeParts:
    """The parts of each node's elapsed time; those that are known add up to it."""
    scope = Scope.of(run, nodes)
    values = {name: METRICS[name].compute(scope) for name in names}
    elapsed_ns = METRICS["elapsed_ns"].compute(scope).numbers.astype(np.int64)
    return TimeParts(values, elapsed_ns, {}, *_beyond_charged(nodes))


def _beyond_charged(nodes: Groups) -> tuple[Float64, Float64]:
    """`model_x` and `all_x` of each node; 1 where the FLOPs are unknown, or take no time."""
    at_peak, again = nodes.known(AT_PEAK)[0], nodes.known(RECOMPUTED_AT_PEAK)[0]
    model, recomputed = nodes.known(THEORY)[0], nodes.known(RECOMPUTED)[0]
    found = ratios(at_peak - again, model), ratios(at_peak, model + recomputed)
    of_model, of_all = (np.where(np.isfinite(x) & (x > 0), x, 1.0) for x in found)
    return of_model, of_all


def divided_as(
    whole: Mapping[str, Float64], some: Mapping[str, Float64], partial: Collection[str]
) -> dict[str, Float64]:
    """The parts that only some GPUs distinguish, and what the others leave unattributed: their
    time on all GPUs, divided as on these. NaN where these have no such time."""
    names = {UNKNOWN: None, **dict.fromkeys(partial)}
    if "frequency_ns" in partial:
        names["unseparated_ns"] = None
    of_all, of_some = (np.sum([each[name] for name in names], axis=0) for each in (whole, some))
    factor = np.where(of_some > 0, ratios(of_all, of_some), np.nan)
    return {name: factor * some[name] for name in names}


def with_all_parts(covered: Mapping[str, frozenset[int]]) -> tuple[frozenset[int], list[str]]:
    """The GPUs that distinguish the most parts, of those that only some GPUs do, and these parts;
    no GPUs where all distinguish all."""
    if not covered:
        return frozenset(), []
    gpus = frozenset.intersection(*covered.values()) or max(covered.values(), key=len)
    return gpus, [name for name, own in covered.items() if gpus <= own]


def covered_parts(run: Run, whole: Groups) -> dict[str, frozenset[int]]:
    """The GPUs of a group that distinguish each part, of the parts that only some of them do."""
    by_gpu = whole.split(("gpu",))[0]
    gpus = by_gpu.codes("gpu")
    if len(gpus) < 2:
        return {}
    scope, found = Scope.of(run, by_gpu, whole), {}
    for name in TERMS:
        own = gpus[METRICS[name].compute(scope).present()]
        if 0 < len(own) < len(gpus) and METRICS[name].theme is Theme.BREAKDOWN:
            found[name] = frozenset(own.tolist())
    return found


def without_gpus(tree: Tree, gpus: Collection[int]) -> Mapping[str, list[int]]:
    """The codes that `Tree.split` leaves out so that only some GPUs remain."""
    return {"gpu": [code for code in tree.codes_of("gpu").tolist() if code not in gpus]}


def parts_of_rows(run: Run, rows: Groups, covered: Mapping[str, frozenset[int]]) -> TimeParts:
    """The parts of the time of rows; those that only some of their GPUs distinguish are divided as
    on these."""
    parts = parts_of(run, rows)
    gpus, partial = with_all_parts(covered)
    if not partial:
        return parts
    cells, owner = rows.split(("gpu",))
    of_cells, is_some = parts_of(run, cells), isin(cells.codes("gpu"), sorted(gpus))

    def of_some(values: Int64) -> Float64:
        return sums_of(np.where(is_some, values, 0).astype(np.float64), owner, len(rows))

    found = divided_as(
        {name: parts.numbers(name).astype(np.float64) for name in TERMS},
        {name: of_some(of_cells.numbers(name)) for name in TERMS},
        partial,
    )
    is_part = of_some(of_cells.elapsed_ns) != parts.elapsed_ns
    return replace(
        parts, divided_ns={name: np.where(is_part, each, np.nan) for name, each in found.items()}
    )


def with_parts(run: Run) -> Run:
    """The run with the columns of the breakdown, which a run built in memory may lack."""
    if all(name in run.table.measured for name in BREAKDOWN):
        return run

    def made() -> Run:
        # Runs from files have them: loaded here.
        from chopper_core.align.breakdown import breakdown_columns

        columns = breakdown_columns(run.table, run.hardware)
        return replace(run, table=run.table.with_measured(columns), cubes=None)

    return run.memo(("with parts",), made)


def is_matrix(kernels: Groups) -> Mask:
    """Which groups by kernel are matrix kernels with compute time charged to them."""
    classes = kernel_classes(kernels.table.names)
    named = np.array([each in _MATRIX for each in classes], np.bool_)
    charged = kernels.sum("compute_ns") + kernels.sum("overlap_ns") > 0
    found: Mask = named[kernels.codes("kernel")] & charged
    return found


def without_flops(kernels: Groups) -> float:
    """How much of the matrix kernels' time has no FLOPs of a known peak in its operation, in %."""
    matrix = is_matrix(kernels)
    duration = kernels.sum("duration_ns")[matrix]
    if not {FLOPS, FLOPS_TYPE} <= set(kernels.table.measured) or not duration.sum():
        return 0.0
    # Helpers of a kernel with FLOPs (a reduction of its parts, say) have none of their own.
    operation = kernels.codes("operation")[matrix]
    with_peak = kernels.known(AT_PEAK)[1][matrix] > 0
    known = isin(operation, operation[with_peak])
    return float(100.0 * duration[~known].sum() / duration.sum())


def unknown_flops(kernels: Groups) -> str:
    """Why their share of the peak would be far too small to be shown; empty if it isn't."""
    share = without_flops(kernels)
    if share <= _MAX_UNKNOWN_FLOPS_PCT:
        return ""
    return f"{share:.0f} % of the time of matrix kernels has unknown FLOPs"
