"""The largest of what lies between the model's FLOPs at the peak and the time that went by."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.model.tree import Groups
from chopper_core.views.findings.context import FindingsContext
from chopper_core.views.findings.phrases import gpus_named, percent, time
from chopper_core.views.findings.rule import Finding, Threshold, confidence, rule
from chopper_core.views.overheads import LOSSES, parts_of

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
    "of losses of similar size none stands out",
)

_SAID: Final = {
    "extra_inst_ns": "matrix instructions beyond the model's FLOPs are",
    "mfma_loss_ns": "matrix units that stand idle while matrix kernels run are",
    "vector_ns": "work without matrix instructions is",
    "contention_ns": "what runs beside compute and slows it is",
    "frequency_ns": "the clock below the nominal one is",
    "unseparated_ns": "the clock and what runs beside compute are",
}
"""The losses of compute; communication, copies and idle time have rules of their own."""
_UNKNOWN: Final = "unmodelled_ns"
_MAX_UNKNOWN: Final = 0.1
"""The share of unmodelled time up to which a GPU's time is taken apart."""


@rule(
    "overhead",
    saving="that part of the breakdown, on GPUs whose compute can be split",
    needs="hardware counters",
    thresholds=(OVERHEAD, LARGEST),
)
def largest_overhead(context: FindingsContext) -> list[Finding]:
    """A loss of compute that is larger than every other loss by far."""
    by_gpu = context.split("gpu")
    labels = by_gpu.codes("gpu")
    each = parts_of(context.run, by_gpu)
    unknown = each.numbers(_UNKNOWN) / np.maximum(each.elapsed_ns, 1)
    split = np.flatnonzero(unknown <= _MAX_UNKNOWN)
    if not len(split):
        return []
    if len(split) == len(labels):
        parts = parts_of(context.run, context.split())
    else:
        rows = np.concatenate([by_gpu.rows_of(int(place)) for place in split])
        parts = parts_of(context.run, Groups(context.table, rows, np.zeros(1, np.intp)))
    elapsed = int(parts.elapsed_ns[0])
    sizes = {name: int(parts.numbers(name)[0]) for name in LOSSES if name != _UNKNOWN}
    ranked = sorted(sizes, key=lambda name: -sizes[name])
    name, size, after = ranked[0], sizes[ranked[0]], sizes[ranked[1]]
    if size <= 0 or size < elapsed * OVERHEAD.share or size < LARGEST.value * after:
        return []
    if name not in _SAID:
        return []
    gpus = [int(labels[place]) for place in split]
    count = len(gpus) * len(context.iterations)
    all_gpus = len(gpus) == len(context.gpus)
    which = "" if all_gpus else f" on {gpus_named(gpus)}"
    what = {"frequency_ns": _clock(context)}.get(name, "")
    return [
        Finding(
            sentence=(
                f"{_SAID[name]} the largest overhead{which}: {time(size / count)}{context.each}, "
                f"{percent(size / elapsed)} of the time{what}; the next is {LOSSES[ranked[1]]} "
                f"with {percent(after / elapsed)}"
            ),
            evidence=context.with_view("overheads", "" if len(gpus) == 1 or all_gpus else "gpu"),
            confidence=confidence(read=False, repeated=count > 1),
            saving_ns=size / count,
            total_ns=float(size),
        )
    ]


def _clock(context: FindingsContext) -> str:
    """What the nominal clock is."""
    hardware = context.run.hardware
    return "" if hardware is None else f" (nominal: {hardware.clock_mhz:,.0f} MHz)"
