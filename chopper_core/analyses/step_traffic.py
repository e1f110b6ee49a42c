"""Bytes over NVLink, xGMI and PCIe in the steps of a scope, and per token, by GPUs' counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from chopper_core.analyses.rows import Own
from chopper_core.analyses.samples import amounts_in
from chopper_core.analyses.step_times import step_windows, tokens_in
from chopper_core.columns import Metric, Values, column
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Mask
from chopper_core.util.grouping import ratios

_SIGNALS: Final = {
    "nvlink": ("NVLink", "nvlink_read_gbps", "nvlink_write_gbps"),
    "xgmi": ("xGMI", "xgmi_read_gbps", "xgmi_write_gbps"),
    "pcie": ("PCIe", "pcie_gbps.rx", "pcie_gbps.tx"),
}
"""Link → its title, and the signals of what a GPU receives and sends."""
_MISSING: Final = "no counter of the link in the telemetry of the GPU, or for only part of a step"


def _declared(link: str, title: str) -> dict[str, Metric]:
    texts = {
        f"{link}_in_step_bytes": (f"{title} in", f"Bytes received over {title} in a step"),
        f"{link}_out_step_bytes": (f"{title} out", f"Bytes sent over {title} in a step"),
    }
    each = "mean over the scope's complete ones; ~ where a step begins or ends outside of the"
    found = {
        name: column(f"{name} | B | {short} a step\n{text}: {each} samples.", missing=_MISSING)
        for name, (short, text) in texts.items()
    }
    token = f"{link}_token_bytes"
    text = f"Bytes over {title}, received and sent, in steps, over their tokens."
    found[token] = column(f"{token} | B | {title} a token\n{text}", missing=_MISSING)
    return found


COLUMNS: Final = {
    name: metric
    for link, (title, *_) in _SIGNALS.items()
    for name, metric in _declared(link, title).items()
}


def traffic_columns(run: Run, view: View, gpus: Sequence[int], given: float | None = None) -> Own:
    """The columns of the links that any of the GPUs has a counter of.

    `given` are the tokens of a GPU and iteration.
    """
    found: Own = []
    for link, (_, inward, outward) in _SIGNALS.items():
        both = [_bytes_in(run, view, gpus, name) for name in (inward, outward)]
        if not any(np.isfinite(amount).any() for amount, _ in both):
            continue
        for (amount, is_held), way in zip(both, ("in", "out"), strict=True):
            mean = amount.mean(axis=1)
            values = Values(mean, extrapolated=is_held.any(axis=1) & np.isfinite(mean))
            found.append((COLUMNS[f"{link}_{way}_step_bytes"], values))
        tokens = tokens_in(run, gpus, step_windows(run, view).iterations, given)
        whole = (both[0][0] + both[1][0]).sum(axis=1)
        used = tokens.sum(axis=1) if tokens.size else np.full(len(gpus), np.nan)
        found.append((COLUMNS[f"{link}_token_bytes"], Values(ratios(whole, used))))
    return found


def _bytes_in(run: Run, view: View, gpus: Sequence[int], signal: str) -> tuple[Float64, Mask]:
    """The bytes of each step as GPUs x steps, NaN where unknown, and where one is extrapolated."""
    windows = step_windows(run, view)
    found = np.full((len(gpus), len(windows.begins_ns)), np.nan)
    is_held = np.zeros(found.shape, np.bool_)
    for place, gpu in enumerate(gpus):
        curve = run.curve(signal, gpu)
        if curve is not None and len(curve.edges_ns):
            found[place], _, is_held[place] = amounts_in(curve, windows)
    return found, is_held & np.isfinite(found)
