"""The largest of what lies between the model's FLOPs at the peak and the time that went by."""

from __future__ import annotations

import numpy as np

from chopper_core.model.tree import Groups
from chopper_core.views.findings.context import Case
from chopper_core.views.findings.finding import Finding, confidence
from chopper_core.views.findings.phrases import percent, places, time
from chopper_core.views.findings.thresholds import LARGEST, OVERHEAD
from chopper_core.views.overheads import LOSSES, parts_of

_SAID = {
    "extra_inst_ns": "matrix instructions beyond the model's FLOPs are",
    "mfma_loss_ns": "matrix units that stand idle while matrix kernels run are",
    "vector_ns": "work without matrix instructions is",
    "contention_ns": "what runs beside compute and slows it is",
    "frequency_ns": "the clock below the nominal one is",
    "unseparated_ns": "the clock and what runs beside compute are",
}
"""The losses of compute; communication, copies and idle time have rules of their own."""
_UNKNOWN = "unmodelled_ns"
_SPLIT = 0.1
"""The share of unmodelled time up to which a GPU's time is taken apart."""


def largest_overhead(case: Case) -> list[Finding]:
    """The largest loss of the GPUs whose time can be taken apart, if it is one of compute."""
    by_gpu = case.split("gpu")
    labels = by_gpu.codes("gpu")
    each = parts_of(case.run, by_gpu)
    unknown = each.numbers(_UNKNOWN) / np.maximum(each.elapsed_ns, 1)
    split = np.flatnonzero(unknown <= _SPLIT)
    if not len(split):
        return []
    if len(split) == len(labels):
        parts = parts_of(case.run, case.split())
    else:
        rows = np.concatenate([by_gpu.rows_of(int(place)) for place in split])
        parts = parts_of(case.run, Groups(case.table, rows, np.zeros(1, np.intp)))
    elapsed = int(parts.elapsed_ns[0])
    sizes = {name: int(parts.numbers(name)[0]) for name in LOSSES if name != _UNKNOWN}
    ranked = sorted(sizes, key=lambda name: -sizes[name])
    name, size, after = ranked[0], sizes[ranked[0]], sizes[ranked[1]]
    if size <= 0 or size < elapsed * OVERHEAD.value / 100 or size < LARGEST.value * after:
        return []
    if name not in _SAID:
        return []
    gpus = [int(labels[place]) for place in split]
    count = len(gpus) * len(case.iterations)
    all_gpus = len(gpus) == len(case.gpus)
    which = "" if all_gpus else f" on GPU{'s' if len(gpus) > 1 else ''} {places(gpus)}"
    what = {"frequency_ns": _clock(case)}.get(name, "")
    return [
        Finding(
            sentence=(
                f"{_SAID[name]} the largest overhead{which}: {time(size / count)}{case.each}, "
                f"{percent(size / elapsed)} of the time{what}; the next is {LOSSES[ranked[1]]} "
                f"with {percent(after / elapsed)}"
            ),
            evidence=case.with_view("overheads", "" if len(gpus) == 1 or all_gpus else "gpu"),
            confidence=confidence(read=False, repeated=count > 1),
            stake_ns=size / count,
            total_ns=float(size),
        )
    ]


def _clock(case: Case) -> str:
    """What the nominal clock is."""
    hardware = case.run.hardware
    return "" if hardware is None else f" (nominal: {hardware.clock_mhz:,.0f} MHz)"
