"""Runs built by hand for tests: activities in, an accounted run out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from chopper_core.ingest import cache
from chopper_core.ingest.open import open_run
from chopper_core.model.accounting import account, launch_overheads
from chopper_core.model.inputs import Gpu
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, NO_TIME, Category, KernelTable, Kind, Phase, Rule
from chopper_core.store.kept import Kept
from chopper_core.views.frame import Frame


def details(frame: Frame) -> list[str]:
    """The findings of a frame in full, in the order of its rows."""
    return [str(frame.values["detail"].cell(row)) for row in range(len(frame))]


class Row(Struct, frozen=True):
    """One activity; times in ns."""

    start: int
    duration: int
    kind: Kind = Kind.COMPUTE
    stream: int = 0
    gpu: int = 0
    iteration: int = NO_LABEL
    phase: int = Phase.FORWARD
    layer: int = NO_LABEL
    operation: str = "op"
    kernel: str = "kernel"
    launch: int | None = None


def counted_rows(run: Run, scope: Mapping[str, str]) -> list[int]:
    """The rows of a scope that count, found row by row: without truncated iterations unless the
    scope names one."""
    table = run.table
    cut = set().union(*run.partial_iterations.values()) if "iteration" not in scope else set()
    return [
        row
        for row in range(len(table))
        if int(table.iteration[row]) not in cut
        and all(
            table.text_of(level, int(table.column(level)[row])) == label
            for level, label in scope.items()
        )
    ]


def rows_of(frame: Frame) -> dict[str, dict[str, Any]]:
    """The rows of a frame by their labels."""
    return {label: frame.row(row) for row, label in enumerate(frame.labels)}


def opened_events(folder: Path, events: Sequence[Any]) -> Run:
    """The run of the events of a Kineto trace of rank 0."""
    path = folder / "rank0.json"
    document = {"traceEvents": events, "distributedInfo": {"rank": 0}}
    path.write_text(json.dumps(document, default=float))
    return open_run(str(path), jobs=1)


def table_of(rows: Sequence[Row]) -> KernelTable:
    """The accounted kernel table of the rows, GPU by GPU."""
    names = sorted({row.kernel for row in rows})
    operations = sorted({row.operation for row in rows})

    def column(values: Sequence[int], dtype: type = np.int64) -> np.ndarray:
        return np.array(values, dtype)

    start = column([row.start for row in rows])
    duration = column([row.duration for row in rows])
    kind = column([row.kind for row in rows], np.int8)
    stream = column([row.stream for row in rows])
    gpu = column([row.gpu for row in rows], np.int32)
    iteration = column([row.iteration for row in rows], np.int32)
    launch = column([NO_TIME if row.launch is None else row.launch for row in rows])
    accounted: dict[str, np.ndarray] = {}
    for number in np.unique(gpu):
        own = gpu == number
        times = account(start[own], duration[own], kind[own], stream[own], launch[own]).columns
        gaps = launch_overheads(start[own], duration[own], kind[own], launch[own], iteration[own])
        for name, values in {**times, **gaps}.items():
            accounted.setdefault(name, np.zeros(len(rows), np.int64))[own] = values
    rules = {
        name: np.full(len(rows), Rule.ANNOTATION, np.int8)
        for name in ("iteration_rule", "phase_rule", "layer_rule", "operation_rule")
    }
    return KernelTable(
        names=names,
        operations=operations,
        gpu=gpu,
        iteration=iteration,
        phase=column([row.phase for row in rows], np.int8),
        layer=column([row.layer for row in rows], np.int32),
        operation=column([operations.index(row.operation) for row in rows], np.int32),
        kernel=column([names.index(row.kernel) for row in rows], np.int32),
        kind=kind,
        category=np.where(kind == Kind.COPY, Category.MEMCPY, Category.KERNEL).astype(np.int8),
        stream=stream,
        start_ns=start,
        duration_ns=duration,
        launch_ns=launch,
        bytes=np.full(len(rows), -1, np.int64),
        group=np.full(len(rows), -1, np.int32),
        **rules,
        **accounted,
    )


def run_of(rows: Sequence[Row], name: str = "made.json", generated: str | None = "a test") -> Run:
    """A run of the rows."""
    table = table_of(rows)
    gpus = tuple(Gpu(int(number), int(number), 0, "") for number in np.unique(table.gpu))
    return Run(name, table, gpus, (), generated=generated)


def sample_run(gpus: int = 4, iterations: int = 3, layers: int = 4, seed: int = 1) -> Run:
    """A small run with every level, several streams, gaps, collectives and copies."""
    random = np.random.default_rng(seed)
    operations = (
        ("attn_n", "layer_norm_kernel", 8),
        ("qkv_ip", "Cijk_Alik_Bljk_MT256x256", 60),
        ("attn_fa", "FmhaFwdKernel<128>", 90),
        ("mlp_up", "Cijk_Alik_Bljk_MT256x128", 80),
    )
    rows: list[Row] = []
    for gpu in range(gpus):
        now = 1_000_000 + 10_000 * gpu
        slow = 1.06 if gpu == gpus - 1 else 1.0
        for iteration in range(10, 10 + iterations):
            rows.append(
                Row(
                    now,
                    4_000,
                    Kind.COPY,
                    0,
                    gpu,
                    iteration,
                    Phase.DATA,
                    NO_LABEL,
                    "dl",
                    "Memcpy HtoD (Host -> Device)",
                    now - 3_000,
                )
            )
            now += 9_000
            for phase in (Phase.FORWARD, Phase.BACKWARD):
                for step in range(layers):
                    layer = step if phase is Phase.FORWARD else layers - 1 - step
                    rows.append(
                        Row(
                            now,
                            100_000,
                            Kind.COMM,
                            11,
                            gpu,
                            iteration,
                            phase,
                            layer,
                            "all_gather",
                            "ncclDevKernel_Generic",
                            now - 20_000,
                        )
                    )
                    for operation, kernel, cost in operations:
                        took = int(cost * 1_000 * slow * random.uniform(0.95, 1.05))
                        took *= 2 if phase is Phase.BACKWARD else 1
                        launch = None if random.random() < 0.02 else now - 5_000
                        rows.append(
                            Row(
                                now,
                                took,
                                Kind.COMPUTE,
                                0,
                                gpu,
                                iteration,
                                phase,
                                layer,
                                operation,
                                kernel,
                                launch,
                            )
                        )
                        now += took + int(random.integers(0, 3_000))
            rows.append(
                Row(
                    now,
                    50_000,
                    Kind.COMPUTE,
                    0,
                    gpu,
                    iteration,
                    Phase.OPTIMIZER,
                    NO_LABEL,
                    "opt_step",
                    "multi_tensor_apply_kernel<FusedAdam>",
                    now + 0,
                )
            )
            now += 80_000
    return run_of(rows, name="sample.json")


def place_of_row(run: Path) -> Kept:
    """The place of a row of a table of runs."""
    return Kept(cache.directory().parent / "rows" / "a", cache.key_of(str(run)))
