"""Runs of any size, made as arrays without traces, and kept as stores under build/.

They are generated, and say so: a step is repeated with random durations; only the shape of such
a run (levels, streams, how often a name comes) is like that of a real one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from msgspec.structs import replace

from chopper_core.align.breakdown import breakdown_columns
from chopper_core.answers.opening import work_out
from chopper_core.ingest.batches import TableContent, gather
from chopper_core.model.accounting import account, launch_overheads
from chopper_core.model.inputs import Gpu, Source
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, Category, KernelTable, Kind, Phase, Rule
from chopper_core.model.tree import level_order
from chopper_core.store.format import read_index
from chopper_core.store.writer import write_store
from chopper_core.util.errors import DataError
from tests.programs.bench.processes import ROOT

GENERATED = "tests/programs/bench/runs.py"
LAYERS = 32
LARGE = (8, 1_250_000)
MANY = (1_000, 33_000)
MOST = (10_000, 3_730)
"""Two whole steps of each rank."""
_DIFFERENT = 14
"""GPUs whose times are drawn; every seventh of a run is slower."""
_FORWARD = (
    ("all_gather", ("ncclDevKernel_AllGather",), 400),
    ("attn_norm", ("vectorized_layer_norm_kernel", "elementwise_kernel"), 30),
    ("qkv_ip", ("Cijk_Alik_Bljk_BBS_BH_MT256x256x64",), 300),
    ("rope", ("rotary_kernel", "CatArrayBatchedCopy"), 25),
    ("attn_fa", ("FmhaFwdKernel<128, bf16>",), 500),
    ("attn_op", ("Cijk_Alik_Bljk_BBS_BH_MT256x128x64", "elementwise_kernel"), 110),
    ("mlp_norm", ("vectorized_layer_norm_kernel", "elementwise_kernel"), 30),
    ("mlp_gp", ("Cijk_Alik_Bljk_BBS_BH_MT256x256x32",), 420),
    ("mlp_up", ("Cijk_Alik_Bljk_BBS_BH_MT256x256x32",), 420),
    ("mlp_act", ("silu_kernel", "elementwise_kernel"), 60),
    ("mlp_dp", ("Cijk_Ailk_Bljk_BBS_BH_MT256x256x64",), 430),
    ("residual", ("elementwise_kernel",), 20),
)
_OPTIMIZER = ("multi_tensor_apply_kernel<FusedAdam>", "multi_tensor_l2norm_kernel")


@cache
def _step() -> tuple[np.ndarray, ...]:
    """One iteration: phase, layer, operation, kernel, kind and mean ns of each activity."""
    rows: list[tuple[int, int, str, str, int, int]] = []
    rows.append((Phase.DATA, NO_LABEL, "dataload", "Memcpy HtoD (Host -> Device)", Kind.COPY, 9))
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        for layer in range(LAYERS) if phase is Phase.FORWARD else reversed(range(LAYERS)):
            for operation, kernels, cost in _FORWARD:
                times = 1 if phase is Phase.FORWARD else 2
                kind = Kind.COMM if operation == "all_gather" else Kind.COMPUTE
                mean = cost // len(kernels)
                rows += [(phase, layer, operation, name, kind, mean) for name in kernels * times]
            if phase is Phase.BACKWARD:
                name = "ncclDevKernel_ReduceScatter"
                rows.append((phase, layer, "reduce_scatter", name, Kind.COMM, 700))
    last = [(Phase.OPTIMIZER, NO_LABEL, "opt_step", name, Kind.COMPUTE, 40) for name in _OPTIMIZER]
    rows += last * 100
    phases, layers, operations, kernels, kinds, costs = zip(*rows, strict=True)
    return (
        np.array(phases, np.int8),
        np.array(layers, np.int32),
        np.array([operation_names().index(name) for name in operations], np.int32),
        np.array([kernel_names().index(name) for name in kernels], np.int32),
        np.array(kinds, np.int8),
        np.array(costs, np.int64) * 1000,
    )


def operation_names() -> tuple[str, ...]:
    """The names of all operations."""
    return ("dataload", *(name for name, _, _ in _FORWARD), "reduce_scatter", "opt_step")


def kernel_names() -> tuple[str, ...]:
    """The names of all kernels."""
    forward = dict.fromkeys(name for _, names, _ in _FORWARD for name in names)
    return (
        "Memcpy HtoD (Host -> Device)",
        *forward,
        "ncclDevKernel_ReduceScatter",
        *_OPTIMIZER,
    )


def table_of(gpu: int, kernels: int, measured: bool = True) -> KernelTable:
    """The kernel table of one GPU with this many activities, in the order of the levels.

    The times of each GPU are those of one of the first few, with a clock that is a little later.
    """
    like = _table_of(gpu % _DIFFERENT, kernels, measured)
    later_ns = 100 * (gpu % 20)
    return replace(
        like,
        gpu=np.full(kernels, gpu, np.int32),
        start_ns=like.start_ns + later_ns,
        launch_ns=like.launch_ns + later_ns,
    )


@lru_cache(maxsize=1)
def _in_lockstep(kernels: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and durations of the GPUs whose times are drawn: their collectives end together."""
    kind, cost = (np.resize(_step()[column], kernels) for column in (4, 5))
    comm, random = kind == Kind.COMM, np.random.default_rng(kernels)
    # What communicates starts with the compute that follows it; some of it is exposed.
    blocks = comm & (random.random(kernels) < 0.2)
    slower = np.where(np.arange(_DIFFERENT) % 7 == 3, 1.05, 1.0)[:, None]
    shape = (_DIFFERENT, kernels)
    duration = (cost * random.uniform(0.9, 1.25, shape) * slower).astype(np.int64)
    gaps = np.where(random.random(shape) < 0.6, random.integers(500, 6_000, shape), 0)
    gaps[:, comm] = 0
    took = np.where(comm & ~blocks, 0, duration)
    first = np.append(0, np.flatnonzero(blocks) + 1)
    spent = np.add.reduceat(np.pad(took + gaps, ((0, 0), (0, 1))), first, axis=1)[:, :-1]
    took[:, blocks] += spent.max(axis=0) - spent
    start = 1_700_000_000_000_000_000 + np.cumsum(took + gaps, axis=1) - took
    hidden = comm & ~blocks
    duration[:, blocks] = took[:, blocks]
    duration[:, hidden] = (start + duration)[:, hidden].max(axis=0) - start[:, hidden]
    return start, duration


@lru_cache(maxsize=_DIFFERENT)
def _table_of(gpu: int, kernels: int, measured: bool) -> KernelTable:
    random = np.random.default_rng(gpu)
    step = [np.resize(column, kernels) for column in _step()]
    phase, layer, operation, kernel, kind, _ = step
    iteration = (np.arange(kernels) // len(_step()[0])).astype(np.int32)
    start, duration = (times[gpu] for times in _in_lockstep(kernels))
    comm = kind == Kind.COMM
    stream = np.where(comm, 11, 0).astype(np.int64)
    launch = start - random.integers(2_000, 400_000, kernels)
    times = dict(account(start, duration, kind, stream, launch).columns)
    overheads = launch_overheads(start, duration, kind, launch, iteration)
    rule = np.full(kernels, Rule.ANNOTATION, np.int8)
    columns = {}
    if measured:
        clock = 1700.0 + 150 * np.sin(np.arange(kernels) / 3_000) + random.normal(0, 20, kernels)
        for name, values in (("gfx_mhz", clock), ("power_w", 0.4 * clock)):
            columns[f"{name} integral"] = values * duration
            columns[f"{name} known"] = duration.astype(np.float64)
            columns[f"{name} samples"] = (random.random(kernels) < 0.02).astype(np.float64)
    table = KernelTable(
        names=kernel_names(),
        operations=operation_names(),
        gpu=np.full(kernels, gpu, np.int32),
        iteration=iteration,
        phase=phase,
        layer=layer,
        operation=operation,
        kernel=kernel,
        kind=kind,
        category=np.where(kind == Kind.COPY, Category.MEMCPY, Category.KERNEL).astype(np.int8),
        stream=stream,
        start_ns=start,
        duration_ns=duration,
        launch_ns=launch,
        bytes=np.where(comm, 1 << 27, -1).astype(np.int64),
        group=np.full(kernels, -1, np.int32),
        iteration_rule=rule,
        phase_rule=rule,
        layer_rule=rule,
        operation_rule=rule,
        **times,
        **overheads,
        measured=columns,
    )
    return table.take(level_order(table))


def source_of(rank: int, kernels: int) -> Source:
    """What stands for the trace that there never was."""
    return Source(
        path=f"generated/rank{rank}.json.gz",
        size_bytes=0,
        rank=rank,
        rank_from="generated",
        events={"kernel": kernels},
        unused={},
        findings={},
        losses=(),
        clock="epoch",
        facts={},
        host=f"node{rank // 8:03d}",
    )


class Tables(Sequence[KernelTable]):
    """The tables of ranks with one GPU each, made when they are asked for."""

    def __init__(self, ranks: int, kernels: int, measured: bool = True) -> None:
        self._ranks, self._kernels, self._measured = ranks, kernels, measured

    def __len__(self) -> int:
        return self._ranks

    def __getitem__(self, rank):
        if rank >= self._ranks:
            raise IndexError(rank)
        return table_of(rank, self._kernels, self._measured)


def run_of(ranks: int, kernels: int, table: KernelTable) -> Run:
    """A run of ranks with one GPU each, eight to a host."""
    return Run(
        name=f"generated {ranks} x {kernels}",
        table=table,
        gpus=tuple(Gpu(rank, rank, rank % 8, "AMD Instinct MI300X") for rank in range(ranks)),
        sources=tuple(source_of(rank, kernels) for rank in range(ranks)),
        generated=GENERATED,
    )


def store_of(ranks: int, kernels: int, parts: bool = False) -> Path:
    """A store of such a run, written once; no more than one rank is in memory.

    With the parts of its time, as ingest adds them, these of all ranks are.
    """
    folder = ROOT / "build" / "bench" / f"store-{ranks}x{kernels}{'-parts' * parts}"
    if not _is_usable(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        tables = Tables(ranks, kernels, measured=ranks * kernels <= LARGE[0] * LARGE[1])
        with TemporaryDirectory(dir=folder.parent) as together:
            contents = [TableContent.of(each) for each in tables]
            table = gather(contents, tables.__getitem__, Path(together))
            run = replace(run_of(ranks, kernels, table), name=folder.name)
            if parts:
                columns = breakdown_columns(table, run.hardware)
                run = replace(run, table=table.with_measured(columns))
            write_store(run, folder)
    return folder


def ingested(ranks: int, kernels: int) -> Path:
    """The store of such a run with what `chopper ingest` works out of it."""
    store = store_of(ranks, kernels, parts=True)
    work_out(str(store))
    return store


def _is_usable(folder: Path) -> bool:
    try:
        read_index(folder)
    except DataError:
        return False
    return True


def main() -> None:
    """Write a store and print its path."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=LARGE[0])
    parser.add_argument("--kernels", type=int, default=LARGE[1], help="of each rank")
    options = parser.parse_args()
    print(store_of(options.ranks, options.kernels, parts=True))


if __name__ == "__main__":
    main()
