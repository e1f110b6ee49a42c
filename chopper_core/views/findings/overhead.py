"""The largest loss of compute between the model's FLOPs at the peak and the measured time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from chopper_core.model.groups import Groups
from chopper_core.views.findings.rule import (
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    confidence,
    rule,
)
from chopper_core.views.overheads import LOSSES, parts_of
from chopper_core.views.shared.phrases import by_number, percent, time

OVERHEAD: Final = Threshold(
    "largest overhead",
    15.0,
    "% of the GPUs' time",
    "DVFS, the largest overhead in the paper, costs about a fifth; below this it is one of many",
)
LARGEST: Final = Threshold(
    "largest overhead, relative to the next",
    1.2,
    "times",
    "none of several losses of similar size stands out",
)

_SUBJECTS: Final = {
    "extra_inst_ns": "matrix instructions beyond the model's FLOPs are",
    "mfma_loss_ns": "idle matrix units in matrix kernels are",
    "vector_ns": "work without matrix instructions is",
    "contention_ns": "contention with activities beside compute is",
    "frequency_ns": "a clock below nominal is",
    "unseparated_ns": "time that a lower clock may cost is",
}
"""The losses of compute; communication, copies and idle time have rules of their own."""
_UNATTRIBUTED: Final = "unmodelled_ns"
_MAX_UNATTRIBUTED: Final = 0.1
"""Of a GPU that has a larger share of unattributed time, compute is not split."""


@rule(
    "overhead",
    saving="that part of the breakdown, on GPUs whose compute can be split",
    needs="hardware counters",
    thresholds=(OVERHEAD, LARGEST),
)
def largest_overhead(context: FindingsContext) -> Iterator[Finding]:
    """A loss of compute that is by far the largest loss of all."""
    by_gpu = context.split("gpu")
    labels = by_gpu.codes("gpu")
    each = parts_of(context.run, by_gpu)
    unattributed = each.numbers(_UNATTRIBUTED) / np.maximum(each.elapsed_ns, 1)
    split = np.flatnonzero(unattributed <= _MAX_UNATTRIBUTED)
    if not len(split):
        return
    if len(split) == len(labels):
        parts = parts_of(context.run, context.split())
    else:
        rows = np.concatenate([by_gpu.rows_of(int(place)) for place in split])
        parts = parts_of(context.run, Groups.single(context.table, rows))
    elapsed = int(parts.elapsed_ns[0])
    sizes = {name: int(parts.numbers(name)[0]) for name in LOSSES if name != _UNATTRIBUTED}
    name, following = sorted(sizes, key=lambda name: -sizes[name])[:2]
    size, after = sizes[name], sizes[following]
    if size <= 0 or size < elapsed * OVERHEAD.share or size < LARGEST.value * after:
        return
    if name not in _SUBJECTS:
        return
    gpus = [int(labels[place]) for place in split]
    count = len(gpus) * len(context.iterations)
    is_all = len(gpus) == len(context.gpus)
    where = "" if is_all else f" on {by_number('GPU', gpus)}"
    hardware = context.run.hardware
    nominal = ""
    if name == "frequency_ns" and hardware is not None:
        nominal = f" (nominal: {hardware.clock_mhz:,.0f} MHz)"
    yield Finding(
        sentence=(
            f"{_SUBJECTS[name]} the largest overhead{where}: "
            f"{time(size / count)}{context.each}, {percent(size / elapsed)} of the time{nominal}; "
            f"the next is {LOSSES[following]} with {percent(after / elapsed)}"
        ),
        evidence=context.with_view(
            "overheads",
            "" if len(gpus) == 1 or is_all else "gpu",
            sort=f"-{name.removesuffix('_ns')}_pct",
        ),
        confidence=confidence(measured=False, repeated=count > 1),
        saving_ns=size / count,
        total_ns=float(size),
        cost=Cost.COMPUTE,
    )
