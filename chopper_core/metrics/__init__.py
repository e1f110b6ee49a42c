"""The registry of metrics: the one place that names, defines and computes every figure."""

from __future__ import annotations

from typing import Final

from chopper_core.errors import UsageError
from chopper_core.metrics import time
from chopper_core.metrics.metric import Metric, Scope, Values
from chopper_core.schema import ACTIVITY

__all__ = ["DEFAULT_COLUMNS", "METRICS", "Metric", "Scope", "Values", "default_columns", "metric"]

METRICS: Final = {metric.name: metric for metric in time.METRICS}

DEFAULT_COLUMNS: Final = (
    "elapsed_ns",
    "share_pct",
    "kernels",
    "busy_pct",
    "exposed_comm_ns",
    "idle_ns",
    "compute_ns",
    "overlap_ns",
    "exposed_copy_ns",
    "hidden_ns",
    "kernel_ns",
)
"""What a frame of the tree gives when nobody asks for columns, the most telling first."""
ACTIVITY_COLUMNS: Final = (
    "kernel_ns",
    "start_ns",
    "launch_ns",
    "stream",
    "bytes",
    "elapsed_ns",
    "share_pct",
    "idle_ns",
    "compute_ns",
    "overlap_ns",
    "exposed_comm_ns",
    "exposed_copy_ns",
    "hidden_ns",
    "kernels",
    "busy_pct",
)


def default_columns(level: str) -> tuple[str, ...]:
    """The columns of a level when nobody asks for others."""
    return ACTIVITY_COLUMNS if level == ACTIVITY else DEFAULT_COLUMNS


def metric(name: str) -> Metric:
    """The metric of a name; raises UsageError with the nearest names."""
    if name in METRICS:
        return METRICS[name]
    from difflib import get_close_matches

    near = get_close_matches(name, METRICS, 3, 0.4)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UsageError(f"no column {name!r}{hint} `chopper metrics` lists all")
