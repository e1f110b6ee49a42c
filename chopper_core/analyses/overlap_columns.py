"""Columns of overlap: how much communication overlaps the compute of any rows of activities.

They are over the instances of operations that a row's own activities make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.overlap import Effect, Overlaps, effect, overlaps_of
from chopper_core.columns.metric import Scope, Values, absent, declare, numbered, quotient
from chopper_core.util.arrays import Index
from chopper_core.util.grouping import counts_of, quantiles_of, sums_of

_CHOPPER: Final = "UnaryLab/chopper compute_overlap_cdf, with the union of the intervals"
_LIT: Final = "Lit Silicon (arXiv 2511.09861)"
_COMPARED: Final = (
    "Only like instances are compared: of the same operation, phase, GPU and kernels, within the "
    "row."
)
_UNMEASURED: Final = "start times aren't measured"
_NO_COMPUTE: Final = f"the row has no compute operations, or {_UNMEASURED}"
_NO_SPREAD: Final = "too few like instances, or their overlap doesn't differ"
_QUANTILES: Final = {"median_overlap_pct": 0.5, "p5_overlap_pct": 0.05, "p95_overlap_pct": 0.95}


class GroupedOverlaps(Struct, frozen=True, eq=False):
    """The instances of groups of activities, and the group of each."""

    found: Overlaps
    owner: Index
    count: int

    def times(self) -> dict[str, Values]:
        """What the instances take, and how much of that is overlapped: sums, and their ratios."""
        found, owner, count = self.found, self.owner, self.count
        in_comm, elapsed, masked = (
            sums_of(each, owner, count)
            for each in (found.comm_ns, found.elapsed_ns, found.masked_ns)
        )
        return {
            "overlap_pct": quotient(in_comm, elapsed, 100.0),
            "overlap_copies_pct": quotient(masked, elapsed, 100.0),
            "instance_ns": Values(elapsed),
            "beside_comm_ns": Values(in_comm),
            "operation_instances": Values(counts_of(owner, count)),
        }

    def quantiles(self) -> dict[str, Values]:
        """Quantiles of the instances' overlap."""
        shares = tuple(_QUANTILES.values())
        found = 100.0 * quantiles_of(self.found.share, self.owner, self.count, shares)
        return dict(zip(_QUANTILES, map(numbered, found.T), strict=True))

    def effects(self) -> dict[str, Values]:
        """How the overlap goes with the durations."""
        return columns_of_effect(effect(self.found, self.owner, self.count))


def columns_of_effect(known: Effect) -> dict[str, Values]:
    return {
        "slowdown_x": numbered(known.slowdown),
        "overlap_cost_ns": numbered(known.cost_ns),
        "pearson_r": numbered(known.pearson),
        "cosine": numbered(known.cosine),
    }


_FIGURES: Final[dict[str, Callable[[GroupedOverlaps], dict[str, Values]]]] = {
    **dict.fromkeys(
        (
            *("overlap_pct", "overlap_copies_pct", "instance_ns", "beside_comm_ns"),
            "operation_instances",
        ),
        GroupedOverlaps.times,
    ),
    **dict.fromkeys(_QUANTILES, GroupedOverlaps.quantiles),
    **dict.fromkeys(
        ("slowdown_x", "overlap_cost_ns", "pearson_r", "cosine"), GroupedOverlaps.effects
    ),
}
_ADDED: Final = ("instance_ns", "beside_comm_ns", "operation_instances")
"""Those that are 0 of rows without compute operations."""


def _figure(name: str, scope: Scope) -> Values:
    nodes, run = scope.nodes, scope.run
    if run is None or run.is_reconstructed:
        return absent(len(nodes), 0 if name in _ADDED else np.nan)
    if "overlaps" not in nodes.memo:
        nodes.memo["overlaps"] = GroupedOverlaps(*overlaps_of(run, nodes), len(nodes))
    own: GroupedOverlaps = nodes.memo["overlaps"]
    if not len(own.found):
        zero = Values(np.zeros(len(nodes), np.int64))
        return zero if name in _ADDED else absent(len(nodes))
    make = _FIGURES[name]
    key = ("overlaps", make.__name__)
    if key not in nodes.memo:
        nodes.memo[key] = make(own)
    found: dict[str, Values] = nodes.memo[key]
    return found[name]


declare(
    f"""
    overlap_pct | % | overlap share | ratio of sums
        Share of the operations' elapsed time in which collectives run on the same GPU: the union
        of their intervals over the sum of instance_ns.
        missing: {_NO_COMPUTE}
        source: {_CHOPPER}
    overlap_copies_pct | % | with copies | ratio of sums
        As overlap_pct, of collectives together with the kernels and copies of FSDP's own
        operations (FSDP::..., FullyShardedDataParallel...), which the original takes for
        communication too.
        missing: {_NO_COMPUTE}
        source: {_CHOPPER}
    slowdown_x | x | slowdown
        Median elapsed time of the instances with high overlap over that of those with low overlap:
        the upper and the lower quarter of the range between the least and the most overlapped.
        {_COMPARED} Several of them count by their number of instances. At least 2 instances on both
        sides, and 10 points between the least and the most overlapped.
        missing: {_NO_SPREAD}
    overlap_cost_ns | ns | cost | sum | signed
        Time of the instances with high overlap beyond the median of those with low overlap (see
        slowdown_x): their number times the difference of the medians.
        missing: {_NO_SPREAD}
    pearson_r | | r
        Pearson's correlation of overlap and duration over the instances, both as differences from
        the mean of like instances, durations relative to it. {_COMPARED}
        missing: {_NO_SPREAD}
        source: {_LIT}
    cosine | | cosine
        Cosine similarity of overlap and duration over the instances, durations relative to the
        mean of like instances. {_COMPARED}
        missing: no overlap
        source: {_LIT}
    median_overlap_pct | % | median overlap | quantile
        Median overlap of the row's instances.
        missing: {_NO_COMPUTE}
    p5_overlap_pct | % | p5 overlap | quantile
        5th percentile of the instances' overlap.
        missing: {_NO_COMPUTE}
    p95_overlap_pct | % | p95 overlap | quantile
        95th percentile of the instances' overlap.
        missing: {_NO_COMPUTE}
    operation_instances | | op. instances | sum
        Instances of operations: what an operation computes in one layer, phase and step on one
        GPU, counted again in each micro-step; in each row that has a part of it.
        missing: {_UNMEASURED}
    instance_ns | ns | instances' time | sum
        Durations of the instances' own kernels; what runs between two of them is no part of it.
        missing: {_UNMEASURED}
    beside_comm_ns | ns | overlapped | sum
        The part of instance_ns during which collectives run on the same GPU.
        missing: {_UNMEASURED}
    """,
    _figure,
)
