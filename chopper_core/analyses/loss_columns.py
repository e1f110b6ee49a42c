"""Columns of losses: MFU, the time beyond the ideal and each part's share, of any rows.

A part that only some of a scope's GPUs distinguish is divided in each row as on these GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import PAIR, pair_codes
from chopper_core.analyses.time_parts import (
    LOSSES,
    TERMS,
    THEORY,
    TimeParts,
    covered_parts,
    is_matrix,
    parts_of_rows,
    with_all_parts,
)
from chopper_core.columns.metric import (
    METRICS,
    Metric,
    Scope,
    Values,
    absent,
    declare,
    quotient,
    worded,
)
from chopper_core.model.column_names import BREAKDOWN
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Mask
from chopper_core.util.grouping import counts_of, first_equal, sums_of

MFU: Final = "mfu_pct"
HFU: Final = "hfu_pct"
LOST: Final = ("lost_ns", "largest_loss", MFU, HFU)
SHARES: Final = {name: f"{name.removesuffix('_ns')}_pct" for name in TERMS}
"""Part of the time → the column of its share."""
_NO_FLOPS: Final = "the FLOPs of the row are unknown"


def _lost(parts: TimeParts, nodes: Groups) -> Values:
    """The lost time, unknown where matrix kernels have unknown FLOPs."""
    theory = parts.known(THEORY)
    lost_ns = parts.elapsed_ns - np.rint(theory.known(0.0)).astype(np.int64)
    is_unknown = ~theory.present()
    if is_unknown.any():
        is_unknown &= _has_matrix(nodes)
    return Values(lost_ns, is_unknown, theory.extrapolated)


def _has_matrix(nodes: Groups) -> Mask:
    """Which groups have matrix kernels with compute time charged to them."""
    kernels, owner = nodes.split(("kernel",))
    return np.asarray(sums_of(is_matrix(kernels), owner, len(nodes)) > 0, np.bool_)


def _largest(parts: TimeParts, _: Groups) -> Values:
    losses = np.stack([parts.share(name).known(0.0) for name in LOSSES], axis=1)
    titles = tuple(LOSSES.values())
    return worded([titles[row.argmax()] if row.max(initial=0) > 0 else None for row in losses])


_FIGURES: Final[dict[str, Callable[[TimeParts, Groups], Values]]] = {
    "lost_ns": _lost,
    "largest_loss": _largest,
    MFU: lambda parts, _: parts.utilization(),
    HFU: lambda parts, _: parts.hardware_utilization(),
    "loss_ns": lambda parts, _: Values(parts.elapsed_ns - parts.numbers(THEORY)),
}
_PART_OF: Final = {column: name for name, column in SHARES.items()}


def parts_in(scope: Scope) -> TimeParts | None:
    """The parts of the time of a scope's nodes, found once; None without the breakdown."""
    nodes, run = scope.nodes, scope.run
    if run is None or not all(name in nodes.table.measured for name in BREAKDOWN):
        return None
    key = ("time parts", id(scope.parent))
    if key not in nodes.memo:
        # The parent stays referred to, so that no other gets its id.
        covered = covered_parts(run, scope.parent)
        nodes.memo[key] = parts_of_rows(run, nodes, covered), scope.parent
    found: TimeParts = nodes.memo[key][0]
    return found


def divided_note(run: Run, whole: TimeParts, node: Groups) -> tuple[str, ...]:
    """How many GPUs of a node have the parts that only some distinguish, where that counts."""
    if not any(whole.is_divided(name)[0] for name in whole.divided_ns):
        return ()
    own, _ = with_all_parts(covered_parts(run, node))
    gpus = len(node.gpus(0))
    return (f"~ compute of {gpus} GPUs is divided as on the {len(own)} that have the parts",)


def _share_of_step(scope: Scope) -> Values:
    """loss_ns of a step of the scope in % of its time; rows of whole steps have their own number
    of steps, all others that of the scope."""
    loss, nodes = _figure("loss_ns", scope), scope.nodes
    cells, owner = nodes.split(PAIR)
    every = scope.parent.split(PAIR)[0]
    at = first_equal(pair_codes(every), pair_codes(cells))
    is_part = (at < 0) | (cells.sizes() < every.sizes()[at])
    is_step, in_steps = (each.codes(PAIR[1]) != NO_LABEL for each in (every, cells))
    has_steps = bool(is_step.any())
    steps = int(is_step.sum()) if has_steps else len(every)
    own = counts_of(owner[in_steps] if has_steps else owner, len(nodes))
    is_whole = counts_of(owner[is_part], len(nodes)) == 0
    counted = np.where(is_whole, np.maximum(own, 1), steps)
    share = quotient(loss.known() / counted, scope.parent.elapsed_ns / steps, 100.0)
    return replace(share, extrapolated=loss.extrapolated)


def _figure(name: str, scope: Scope) -> Values:
    if name == "loss_pct":
        return _share_of_step(scope)
    parts = parts_in(scope)
    if parts is None:
        return absent(len(scope.nodes))
    if name in _PART_OF:
        return parts.share(_PART_OF[name])
    return _FIGURES[name](parts, scope.nodes)


declare(
    """
    lost_ns | ns | lost | sum
        elapsed_ns - theoretical_ns: time beyond that of the model's FLOPs at peak.
        missing: the FLOPs of the row's matrix kernels are unknown (record_shapes=True in the
          profiler gives them)
    largest_loss | | largest loss | words
        The largest part of lost_ns.
        missing: the row loses nothing
    mfu_pct | % | MFU % | ratio of sums
        Model FLOPs utilization: the time that the model's FLOPs take at peak, in % of elapsed_ns.
        It is theoretical_pct, but while two kernels compute at once it counts the FLOPs of both,
        where time is charged to one.
    hfu_pct | % | HFU % | ratio of sums
        Hardware FLOPs utilization: the same with the FLOPs of recomputed activities. Without
        recomputation it is the MFU.
    loss_ns | ns | loss | sum
        elapsed_ns less the ideal: what the row loses. The rows add up to the step less the ideal.
        Where FLOPs are unknown, no time is ideal, and compute is not explained.
        missing: the table lacks the parts of the time
        source: time accounting (docs/accounting.md), breakdown of compute
    loss_pct | % | % of step
        loss_ns in % of the time of the scope's step, both per step and GPU.
        missing: the table lacks the parts of the time, or the step takes no time
        source: time accounting (docs/accounting.md), breakdown of compute
""",
    _figure,
    source="overhead breakdown",
    missing=_NO_FLOPS,
)


def _declare_share(name: str, term: Metric) -> None:
    declare(
        f"""{SHARES[name]} | {Unit.PERCENT.value} | {term.title} %
        Its time in % of the row's elapsed_ns; the shares add up to 100. ~ marks parts that only
        some GPUs distinguish: the compute of all is divided as on these.""",
        _figure,
        source=term.source,
        missing=term.missing_because or "the row has no time",
    )


for _name in TERMS:
    _declare_share(_name, METRICS[_name])
