"""What counters and telemetry say of each activity: the measured columns of the kernel table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.counters import CounterMatch, match_counters
from chopper_core.align.identity import devices_of_agents, gpus_of_agents
from chopper_core.align.launches import Dispatched
from chopper_core.align.sequences import UNMATCHED
from chopper_core.model.accounting import cut
from chopper_core.model.column_names import (
    COUNTER_DURATION,
    COUNTER_MATCH,
    ENERGY,
    Match,
    integral_of,
    is_part,
    known_of,
    samples_in,
)
from chopper_core.model.overrides import Overrides
from chopper_core.model.run import Gpu, Identity
from chopper_core.model.signals import Signal
from chopper_core.model.table import KernelTable, Kind
from chopper_core.sources.dispatches import DispatchRun
from chopper_core.util.arrays import Float64, Index

_POWERS: Final = ("energy_rate_w", "power_w")
"""What energy comes from, the surer one first."""


def telemetry_columns(table: KernelTable, signals: Mapping[str, Signal]) -> dict[str, Float64]:
    """Integrals of the signals over each activity, and the energy charged to it."""
    columns: dict[str, Float64] = {}
    end_ns = table.start_ns + table.duration_ns
    for name, signal in signals.items():
        if is_part(name):
            continue
        integral = np.full(len(table), np.nan)
        known = np.full(len(table), np.nan)
        samples = np.full(len(table), np.nan)
        for gpu, curve in signal.curves.items():
            own = np.flatnonzero(table.gpu == gpu)
            before, covered_before = curve.integrals(table.start_ns[own])
            after, covered_after = curve.integrals(end_ns[own])
            integral[own] = after - before
            known[own] = covered_after - covered_before
            samples[own] = np.searchsorted(curve.edges_ns, end_ns[own]) - np.searchsorted(
                curve.edges_ns, table.start_ns[own]
            )
        columns |= {integral_of(name): integral, known_of(name): known, samples_in(name): samples}
    powers = [signals[name] for name in _POWERS if name in signals]
    if powers:
        columns[ENERGY] = _energy(table, powers)
    return columns


def _energy(table: KernelTable, powers: Sequence[Signal]) -> Float64:
    """The energy of each piece of a GPU's span, charged as its time is, in J.

    Of two signals the energy counter's, unless the other one has more than twice the samples.
    """
    energy = np.full(len(table), np.nan)
    for gpu in sorted({gpu for power in powers for gpu in power.curves}):
        curves = [power.curves[gpu] for power in powers if gpu in power.curves]
        most = max(len(np.unique(curve.edges_ns)) for curve in curves)
        curve = next(each for each in curves if 2 * len(np.unique(each.edges_ns)) >= most)
        own = np.flatnonzero(table.gpu == gpu)
        pieces = cut(
            table.start_ns[own], table.duration_ns[own], table.kind[own], table.stream[own]
        )
        joules, covered = (np.diff(part) for part in curve.integrals(pieces.edges_ns))
        spent = np.bincount(pieces.owner, weights=joules * 1e-9, minlength=len(own))
        known = np.bincount(pieces.owner, weights=covered, minlength=len(own))
        length = np.bincount(pieces.owner, weights=np.diff(pieces.edges_ns), minlength=len(own))
        energy[own] = np.where(known >= length, spent, np.nan)
    return energy


class GpuMatch(Struct, frozen=True):
    """How the counters of one GPU were matched with its activities."""

    gpu: int
    agent: int
    """Its number among the agents of the counter run."""
    run: DispatchRun
    dispatches: int
    matched: int
    borrowed: int
    ambiguous: int
    unmatched: int
    """Compute kernels without counters."""
    unused_dispatches: int
    windows: int
    comparison: str


def counter_columns(
    table: KernelTable, gpus: Sequence[Gpu], runs: Sequence[DispatchRun], overrides: Overrides
) -> tuple[dict[str, Float64], list[GpuMatch], list[Identity]]:
    """The counters of each activity, how well the sequences fit, and whose they are."""
    columns: dict[str, Float64] = {}
    quality: list[GpuMatch] = []
    identities: list[Identity] = []

    def store(name: str, rows: Index, values: Float64) -> None:
        column = columns.setdefault(name, np.full(len(table), np.nan))
        empty = np.isnan(column[rows])
        column[rows[empty]] = values[empty]

    for run in runs:
        found_agents = _identities(run, gpus, overrides)
        identities += found_agents.values()
        for agent, identity in found_agents.items():
            gpu = identity.gpu
            if gpu is None:
                continue
            dispatches = np.flatnonzero(run.dispatches.gpu == agent)
            rows = np.flatnonzero(table.gpu == gpu)
            process = next(each.process for each in gpus if each.index == gpu)
            found = match_counters(table, rows, Dispatched.of(run, dispatches, process))
            hit = found.dispatch != UNMATCHED
            taken = dispatches[found.dispatch[hit]]
            for name, values in run.dispatches.counters.items():
                store(name, rows[hit], values[taken])
            start, end = run.dispatches.start_ns[taken], run.dispatches.end_ns[taken]
            duration = np.where((start >= 0) & (end > start), end - start, np.nan)
            store(COUNTER_DURATION, rows[hit], duration.astype(np.float64))
            store(COUNTER_MATCH, rows[hit], found.match[hit].astype(np.float64))
            quality.append(_quality(table, rows, gpu, agent, run, dispatches, found))
    return columns, quality, identities


def _quality(
    table: KernelTable,
    rows: Index,
    gpu: int,
    agent: int,
    run: DispatchRun,
    found_in: Index,
    found: CounterMatch,
) -> GpuMatch:
    kernels = (table.kind[rows] == Kind.COMPUTE) & (table.category[rows] == 0)
    return GpuMatch(
        gpu=gpu,
        agent=agent,
        run=run,
        dispatches=len(found_in),
        matched=int((found.match == Match.MATCHED).sum()),
        borrowed=int((found.match == Match.BORROWED).sum()),
        ambiguous=int((found.match == Match.AMBIGUOUS).sum()),
        unmatched=int((kernels & (found.match == Match.NONE)).sum()),
        unused_dispatches=found.unused_dispatches,
        windows=found.windows,
        comparison=found.comparison,
    )


def _identities(run: DispatchRun, gpus: Sequence[Gpu], overrides: Overrides) -> dict[int, Identity]:
    """Agent that dispatched → which GPU it is."""
    paths = tuple(map(str, run.paths))
    used = [int(agent) for agent in np.unique(run.dispatches.gpu)]
    agents = [run.agents[agent] for agent in used]
    said = overrides.devices(run.format, *(path.name for path in run.paths))
    return {
        agent: Identity(", ".join(paths), run.format, device.names, device.text, who.gpu, who.by)
        for agent, device, who in zip(
            used, devices_of_agents(agents), gpus_of_agents(agents, gpus, said), strict=True
        )
    }
