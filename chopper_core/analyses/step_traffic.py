"""Bytes over NVLink, xGMI, PCIe and InfiniBand in the steps of a scope, and per token.

Links of GPUs are counted by each GPU, InfiniBand by each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.rows import Own
from chopper_core.analyses.samples import amounts_in
from chopper_core.analyses.step_times import step_windows, tokens_in
from chopper_core.columns import Metric, Values, column
from chopper_core.graph.process_groups import nodes_of
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Mask
from chopper_core.util.grouping import ratios


class Link(Struct, frozen=True):
    """A kind of link: its title, and the signals of what a GPU or node receives and sends."""

    title: str
    inward: str
    outward: str
    both: str = ""
    """Of devices that count both directions together; '': there are none."""
    whose: str = ""
    """Not the row's GPU, but its node."""


LINKS: Final = {
    "nvlink": Link("NVLink", "nvlink_read_gbps", "nvlink_write_gbps", "nvlink_gbps"),
    "xgmi": Link("xGMI", "xgmi_read_gbps", "xgmi_write_gbps"),
    "pcie": Link("PCIe", "pcie_gbps.rx", "pcie_gbps.tx", "pcie_gbps"),
    "ib": Link("InfiniBand", "ib_read_gbps", "ib_write_gbps", whose=" by the GPU's node"),
}
_TOKEN: Final = "_token_bytes"
_MISSING: Final = "no counter of the link in the telemetry of the GPU, or for only part of a step"


def _declared(link: str, of: Link) -> dict[str, Metric]:
    each = "mean over the scope's complete ones; ~ where a step begins or ends outside of the"
    found = {
        f"{link}_{way}_step_bytes": column(
            f"{link}_{way}_step_bytes | B | {of.title} {way} a step\n"
            f"Bytes {done} over {of.title}{of.whose} in a step: {each} samples.",
            missing=_MISSING,
        )
        for way, done in (("in", "received"), ("out", "sent"))
    }
    what = f"Bytes over {of.title}, received and sent{of.whose}, in steps, over their tokens."
    found[link + _TOKEN] = column(
        f"{link}{_TOKEN} | B | {of.title} a token\n{what}", missing=_MISSING
    )
    return found


COLUMNS: Final = {
    name: metric for link, of in LINKS.items() for name, metric in _declared(link, of).items()
}


def traffic_columns(run: Run, view: View, gpus: Sequence[int], given: float | None = None) -> Own:
    """The columns of all links, empty where no GPU has a counter.

    `given` are the tokens of a GPU and step.
    """
    found: Own = []
    for link, of in LINKS.items():
        every = [_bytes_in(run, view, gpus, name, of) for name in (of.inward, of.outward)]
        for (amount, is_held), way in zip(every, ("in", "out"), strict=True):
            mean = amount.mean(axis=1) if amount.size else np.full(len(gpus), np.nan)
            values = Values(mean, extrapolated=is_held.any(axis=1) & np.isfinite(mean))
            found.append((COLUMNS[f"{link}_{way}_step_bytes"], values))
        amount = every[0][0] + every[1][0]
        if not np.isfinite(amount).any() and of.both:
            amount, _ = _bytes_in(run, view, gpus, of.both, of)
        each = np.full(len(gpus), np.nan)
        if np.isfinite(amount).any():
            each = ratios(amount.sum(axis=1), _tokens(run, view, gpus, of, given))
        found.append((COLUMNS[link + _TOKEN], Values(each)))
    return found


def traffic_together(
    run: Run, gpus: Sequence[int], name: str, known: Float64, rows: Sequence[Index]
) -> list[float]:
    """A column of `COLUMNS` of the GPUs of each row of places together; NaN where one lacks it.

    Bytes per token are means. Those of a node count once, where all its GPUs are in the row.
    """
    if name.endswith(_TOKEN):
        return [float(known[own].mean()) for own in rows]
    if not LINKS[name.split("_", 1)[0]].whose:
        return [float(known[own].sum()) for own in rows]
    names = np.array(_names_of_nodes(run, gpus))
    found = []
    for own in rows:
        there = {name: np.flatnonzero(names == name) for name in names[own].tolist()}
        is_whole = all(np.isin(places, own).all() for places in there.values())
        parts = [known[places[0]] for places in there.values()]
        found.append(float(np.sum(parts)) if is_whole else np.nan)
    return found


def totals_of_traffic(run: Run, gpus: Sequence[int], traffic: Own) -> Own:
    """All GPUs together, where all have a counter."""
    found: Own = []
    for metric, values in traffic:
        every = [np.arange(len(gpus))]
        (total,) = traffic_together(run, gpus, metric.name, values.known(), every)
        held = values.extrapolated is not None and bool(values.extrapolated.any())
        found.append((metric, Values(np.array([total]), extrapolated=np.array([held]))))
    return found


def _names_of_nodes(run: Run, gpus: Sequence[int]) -> list[str]:
    """The node of each GPU; one that is unknown is a node of its own."""
    names = nodes_of(run, gpus)[0]
    return [name or f"GPU {gpu}" for gpu, name in zip(gpus, names, strict=True)]


def _tokens(run: Run, view: View, gpus: Sequence[int], of: Link, given: float | None) -> Float64:
    """The tokens of each GPU, or of its node, in all steps."""
    iterations = step_windows(run, view).iterations
    every = [gpu.index for gpu in run.gpus] if of.whose else gpus
    tokens = tokens_in(run, every, iterations, given)
    used = tokens.sum(axis=1) if tokens.size else np.full(len(every), np.nan)
    if not of.whose:
        return used
    names = np.array(_names_of_nodes(run, every))
    return np.array([used[names == name].sum() for name in _names_of_nodes(run, gpus)])


def _bytes_in(
    run: Run, view: View, gpus: Sequence[int], signal: str, of: Link
) -> tuple[Float64, Mask]:
    """The bytes of each step as GPUs x steps, NaN where unknown, and where one is extrapolated."""
    windows = step_windows(run, view)
    found = np.full((len(gpus), len(windows.begins_ns)), np.nan)
    is_held = np.zeros(found.shape, np.bool_)
    if signal not in run.measured:
        return found, is_held
    counting = dict(zip(gpus, gpus, strict=True))
    if of.whose:
        there = sorted(run.measured[signal].curves)
        counter = dict(zip(_names_of_nodes(run, there), there, strict=True))
        names = _names_of_nodes(run, gpus)
        counting = {
            gpu: counter[name] for gpu, name in zip(gpus, names, strict=True) if name in counter
        }
    for place, gpu in enumerate(gpus):
        curve = run.curve(signal, counting.get(gpu, -1))
        if curve is not None and len(curve.edges_ns):
            found[place], _, is_held[place] = amounts_in(curve, windows)
    return found, is_held & np.isfinite(found)
