"""Runs without a trace: dispatches of counter runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chopper_core.align.dispatches import PlacedCounter, align_dispatches, counter_signals
from chopper_core.model.hardware import hardware_of_agent
from chopper_core.model.inputs import Gpu, Source
from chopper_core.model.run import Run
from chopper_core.sources.dispatches import DispatchRun
from chopper_core.util.errors import DataError

NO_CLOCK: Final = "none: dispatches have no times, only their order"


def run_of_dispatches(name: str, dispatch_runs: Sequence[DispatchRun], hardware: str) -> Run:
    """A run made of profiled dispatches: of several profiled runs, the one with the most."""
    chosen = max(dispatch_runs, key=lambda run: len(run.dispatches))
    if not len(chosen.dispatches):
        raise DataError(f"{chosen.paths[0]} has no kernel dispatches")
    found = align_dispatches(chosen)
    table = found.aligned.table
    gpus = tuple(
        Gpu(number, 0, device, product, pci=chosen.agents[found.agents[number]].pci)
        for number, (device, product) in enumerate(
            zip(found.aligned.devices, found.products, strict=True)
        )
    )
    source = Source(
        path=", ".join(map(str, chosen.paths)),
        size_bytes=sum(path.stat().st_size for path in chosen.paths),
        rank=0,
        rank_from="the only profiled run",
        events={"dispatch": len(chosen.dispatches)},
        unused={"dispatch": found.without_times},
        findings={
            "dispatches without times": found.without_times if table.has_times else len(table),
            "communication kernels": found.aligned.findings["communication kernels"],
        },
        losses=tuple(chosen.losses.notes),
        notes=tuple(chosen.join_notes),
        clock=f"{chosen.clock}: since boot, without a date" if table.has_times else NO_CLOCK,
        facts={"format": chosen.format, "passes": str(chosen.passes)},
    )
    return Run(
        name=name,
        table=table,
        gpus=gpus,
        sources=(source,),
        skipped=tuple(
            (str(path), "belongs to another profiled run, with fewer dispatches than the one shown")
            for other in dispatch_runs
            for path in other.paths
            if path not in chosen.paths
        ),
        counter_info=dict(chosen.counter_info),
        measured=counter_signals(
            [
                PlacedCounter(each, gpu.index, 0)
                for gpu in gpus
                for each in chosen.sampled
                if table.has_times and each.gpu == found.agents[gpu.index]
            ]
        ),
        described_hardware=hardware_of_agent(chosen.agents[found.agents[0]], hardware),
        partial_iterations={gpu.index: found.aligned.partial_iterations for gpu in gpus},
    )
