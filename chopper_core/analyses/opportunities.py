"""What kernels could gain where no finding is about them: the overview's cards of opportunities.

What each could save is a bound: what the kernel would take less if nothing else limited it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.call_columns import shape_figures
from chopper_core.analyses.call_figures import by_shape
from chopper_core.analyses.step_account import Step
from chopper_core.columns import METRICS
from chopper_core.columns.launches import rounds_of
from chopper_core.model import address
from chopper_core.model.charts import Card
from chopper_core.model.column_names import CALL_SHAPE, FLOPS, FLOPS_TYPE, GRID, MODEL_BYTES
from chopper_core.model.hardware import ElementType, Hardware
from chopper_core.model.phrases import count, percent, time
from chopper_core.model.shapes import CallShape, Product
from chopper_core.model.table import Category, Kind
from chopper_core.model.view import View, with_view
from chopper_core.util.arrays import Float64, Index, Mask
from chopper_core.util.grouping import combined, distinct
from chopper_core.util.patterns import late
from chopper_core.work.kernel_classes import kernel_class

_LEAST_SHARE: Final = 0.001
"""Of the step; less is not worth a card."""
_LEAST_BOUND: Final = 0.01
"""Of the step; a bound that is less is not worth one."""
_ROOF_PCT: Final = 40.0
"""Of the roof: what tuned kernels of most shapes reach, as for large products."""
_FULL: Final = 0.5
"""Of the units in the last round of workgroups; a fuller one is no tail."""
_FEW_TILES: Final = 0.9
"""Of the elements in a product's tiles; with more of its own it fits them."""
_TILE: Final = late(r"(?:^|_)MT(\d+)x(\d+)(?:x\d+)?(?=_|$)|_(\d{2,3})x(\d{2,3})_\d+x\d+(?=_|$)")
"""The tile of a product in names of hipBLASLt, cuBLAS and CUTLASS."""
_SHORT: Final = (ElementType.FP16, ElementType.BF16)
_MAX_NAMED: Final = 3


def opportunities(step: Step, *, has_products: bool) -> list[Card]:
    """Shapes far below their roof, launches that don't fill the GPU, and products off their tile
    or of too wide a type; the evidence lists the kernels.

    Shapes of matrix products are left out where a finding is about them.
    """
    found = [*_below_roof(step, has_products=has_products), *_unfilled(step), *_products(step)]
    return sorted(found, key=lambda card: -card.share_pct)


def _below_roof(step: Step, *, has_products: bool) -> Iterator[Card]:
    """Operators whose shapes stay far below their roof; the evidence has a benchmark of each."""
    run, view = step.run, step.view
    if CALL_SHAPE not in run.table.measured:
        return
    rows = by_shape(run, view)
    figures_of_shapes = shape_figures(run, rows)
    roof = METRICS["model_roof_pct"].compute(rows.scope(run)).known()
    runnable = figures_of_shapes["torch"].present() | figures_of_shapes["hipblaslt"].present()
    took_ns = rows.nodes.sum("duration_ns")
    lost_ns = took_ns / max(step.times.cells, 1) * (1 - roof / _ROOF_PCT)
    # What would take less than the shortest kernel at its roof is limited by its launch.
    shortest_ns = run.table.duration_ns[_kernels(step)].min(initial=np.iinfo(np.int64).max)
    lost_ns[took_ns * roof / 100 < shortest_ns * rows.nodes.sum("kernels")] = 0.0
    kinds: dict[str, list[int]] = {}
    for row in np.flatnonzero(np.nan_to_num(lost_ns) > 0).tolist():
        operator = rows.labels[row].split()[0]
        kinds.setdefault("mm" if operator.endswith("mm") else operator, []).append(row)
    for kind, own in kinds.items():
        saved_ns = float(lost_ns[own].sum())
        if saved_ns < _LEAST_SHARE * step.times.mean_ns or (kind == "mm" and has_products):
            continue
        name = "GEMM" if kind == "mm" else kind
        weights = took_ns[own]
        text = (
            f"{count(len(own), f'{name} shape')} at {np.average(roof[own], weights=weights):.0f} % "
            f"of the roof: {time(saved_ns)} less at {_ROOF_PCT:g} %"
        )
        # Those that a launch limits are the ones furthest below.
        least = f" model_roof_pct>={np.floor(1e3 * roof[own].min()) / 1e3:g}"
        shapes = replace(
            with_view(view, "kernels"),
            by="shape",
            columns=("kernel_ns", "calls", "model_roof_pct", "bound", "torch", "hipblaslt"),
            filter=rf"{'' if kind == 'mm' else '^'}{kind}\b model_roof_pct<{_ROOF_PCT:g}{least}",
        )
        note = "B copies a benchmark" if runnable[own].all() else ""
        yield _card(step, saved_ns, text, shapes, note)


def _unfilled(step: Step) -> Iterator[Card]:
    """Kernels with fewer workgroups than the GPU has units, and those whose last round is short."""
    table, chip, rows = step.run.table, step.run.hardware, _kernels(step)
    if chip is None or GRID not in table.measured or not len(rows):
        return
    grid, units = table.measured[GRID][rows], chip.compute_units
    took = table.duration_ns[rows].astype(np.float64)
    rounds, last = rounds_of(grid, units)
    small, tailed = grid < units, (rounds > 1) & (last < _FULL)
    # The shortest kernel shows what a launch takes at least.
    floor_ns = np.where(small, took.min(), 0.0)
    lost_ns = np.nan_to_num((took - floor_ns) * (1 - last) / rounds)
    for chosen, what, shown, limit in (
        (small, f"launch fewer workgroups than the GPU has units ({units})", "unused_cus_pct", 0),
        (tailed, f"end with a round for under half of the GPU's {units} units", "tail_pct", 5),
    ):
        number = round(int(chosen.sum()) / max(step.times.cells, 1))
        saved_ns = float(lost_ns[chosen].sum()) / max(step.times.cells, 1)
        text = f"{count(number, 'kernel')} {what}: at most {time(saved_ns)} less if they filled it"
        view = replace(
            with_view(step.view, "kernels"),
            columns=("kernel_ns", "kernels", "grid", shown),
            filter=f"{shown}>{limit}",
            sort="-kernel_ns",
        )
        if saved_ns >= _LEAST_BOUND * step.times.mean_ns:
            yield _card(step, saved_ns, text, view)


def _products(step: Step) -> Iterator[Card]:
    """Products that compute limits: those that fill their tiles badly, and those in fp32 next to
    others of 16 bits."""
    table, chip, rows = step.run.table, step.run.hardware, _kernels(step)
    if chip is None or CALL_SHAPE not in table.measured:
        return
    rows = rows[_is_bound_by_compute(step, chip, rows)]
    if not len(rows):
        return
    shape = table.measured[CALL_SHAPE][rows].astype(np.intp)
    element = table.measured[FLOPS_TYPE][rows]
    took = table.duration_ns[rows].astype(np.float64) / max(step.times.cells, 1)
    pairs, pair = combined([table.kernel[rows], shape])
    used = [_in_tiles(table.names[kernel], table.shapes[code]) for kernel, code in pairs.tolist()]
    share = np.array(used, np.float64)[pair]
    off = share < _FEW_TILES
    if (saved_ns := float((took * (1 - share))[off].sum())) >= _LEAST_BOUND * step.times.mean_ns:
        labels = [table.shapes[code].label for code in distinct(shape[off]).tolist()]
        used_pct = 100 * float(np.average(share[off], weights=took[off]))
        text = (
            f"{count(len(labels), 'GEMM shape')} {'fills' if len(labels) == 1 else 'fill'} "
            f"{used_pct:.0f} % of the kernels' tiles: at most {time(saved_ns)} less with sizes "
            "that are multiples of them"
        )
        yield _card(step, saved_ns, text, _of_shapes(step.view, labels))
    wide, short = element == ElementType.FP32, np.isin(element, _SHORT)
    if not (wide.any() and short.any()):
        return
    other = ElementType(int(element[short][0]))
    ratio = chip.flop_per_ns(ElementType.FP32) / chip.flop_per_ns(other)
    if (saved_ns := float((took * (1 - ratio))[wide].sum())) >= _LEAST_BOUND * step.times.mean_ns:
        labels = [table.shapes[code].label for code in distinct(shape[wide]).tolist()]
        text = (
            f"{count(len(labels), 'GEMM shape')} in fp32 next to others in {other.text}: at most "
            f"{time(saved_ns)} less in {other.text}"
        )
        yield _card(step, saved_ns, text, _of_shapes(step.view, labels))


def _is_bound_by_compute(step: Step, chip: Hardware, rows: Index) -> Mask:
    """Which kernels are of products whose FLOPs take longer at the peak than their bytes do."""
    measured = step.run.table.measured
    flops, element = measured[FLOPS][rows], measured[FLOPS_TYPE][rows]
    code = np.nan_to_num(measured[CALL_SHAPE][rows], nan=-1).astype(np.intp)
    sizes = (each.sizes for each in step.run.table.shapes)
    product = np.array([*(isinstance(each, Product) for each in sizes), False])[code]
    limit: Float64 = chip.at_peak_ns(flops, element)
    moved = measured[MODEL_BYTES][rows] / chip.memory_gbps
    is_bound: Mask = product & np.isfinite(flops) & (limit > np.nan_to_num(moved))
    return is_bound


def _in_tiles(kernel: str, call: CallShape) -> float:
    """The part of the elements in a kernel's tiles that its product has; 1 without a known tile.

    Either side of a tile can be along the rows: the better counts.
    """
    match = _TILE.search(kernel)
    if match is None or kernel_class(kernel) != "gemm" or not isinstance(call.sizes, Product):
        return 1.0
    one, other = (int(size) for size in match.groups() if size)
    rows, columns = call.sizes.m, call.sizes.n
    if not (one and other and rows and columns):
        return 1.0

    def used(high: int, wide: int) -> float:
        return rows * columns / (-(-rows // high) * high * (-(-columns // wide) * wide))

    return max(used(one, other), used(other, one))


def _kernels(step: Step) -> Index:
    table, rows = step.run.table, step.whole.rows
    own: Index = rows[
        (table.kind[rows] == Kind.COMPUTE) & (table.category[rows] == Category.KERNEL)
    ]
    return own


def _of_shapes(view: View, labels: list[str]) -> View:
    named = "|".join("^" + re.escape(each).replace(r"\ ", ".") for each in labels[:_MAX_NAMED])
    return replace(
        with_view(view, "kernels"),
        by="shape",
        columns=("kernel_ns", "calls", "model_roof_pct", "grid", "torch", "hipblaslt"),
        filter=named,
    )


def _card(step: Step, saved_ns: float, text: str, evidence: View, note: str = "") -> Card:
    share = 100 * saved_ns / max(step.times.mean_ns, 1.0)
    figures = (percent(share / 100), time(saved_ns))
    return Card(figures, text, address.render(evidence), note, share)
