"""How well data are joined that lack parts: generated runs with known truth, many seeds.

`python -m tests.programs.bench.joins` prints the tables of docs/internals/joins.md, `-o` writes
them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from chopper_core.align.telemetry_clock import Estimate, Recording
from chopper_core.graph.collectives import collectives_of
from chopper_core.ingest.open import open_run
from chopper_core.model.column_names import COUNTER_MATCH, Match
from chopper_core.model.table import KernelTable, Kind
from chopper_core.sources.signals import ClockDomain, GpuName, SignalName, SignalSamples, Telemetry
from chopper_core.tables.losses import Losses
from tests.align.damaged_collectives import Damage, Layout, damaged
from tests.align.generated import load_generator
from tests.support import Row, table_of

MS = 1_000_000
FIRST_SEED = 31_000
_HEAD = """\
# Joins of damaged data

Share of joins that are right, and of those shown the share that is wrong, over generated runs
whose truth is known. `python -m tests.programs.bench.joins -o docs/internals/joins.md`
rewrites this page; tests hold the goals on other seeds (`tests/align/test_collective_sets.py`).
"""


def collectives_of_files(folder: Path, **options: Any) -> tuple[int, int, int]:
    """How many collectives all files have, and of these how many are shown right and wrong."""
    generator = load_generator()
    from generator.kineto import BASE_NS, RUN_START_NS

    config = generator.Config(counters=False, telemetry=False, **options)
    generator.write(folder, config)
    run = open_run(str(folder), jobs=1)
    true = {
        (trace.rank, activity.start_ns + BASE_NS + RUN_START_NS): activity.collective.index
        for trace in generator.simulate(config).traces
        for activity in trace.activities
        if activity.collective
    }
    started = zip(run.table.gpu.tolist(), run.table.start_ns.tolist(), strict=True)
    number = np.array([true.get(place, -1) for place in started])
    found = collectives_of(run)
    assert found is not None
    whole = int((np.bincount(number[number >= 0]) == config.ranks).sum())
    right = wrong = 0
    for each in np.flatnonzero(found.complete).tolist():
        is_right = len(set(number[found.members.rows_of(each)].tolist())) == 1
        right, wrong = right + is_right, wrong + (not is_right)
    return whole, right, wrong


def counters_of_files(folder: Path, **options: Any) -> tuple[int, dict[str, tuple[int, int, int]]]:
    """The compute kernels of GPUs with counters, and by counter the values right, wrong, marked.

    A value is right if it is that of a dispatch of the kernel's place, in any iteration; wrong if
    it isn't and no state says so.
    """
    generator = load_generator()
    from generator.counters import COUNTERS
    from generator.kineto import BASE_NS, RUN_START_NS
    from generator.serialised import profile, program

    config = generator.Config(telemetry=False, **options)
    generator.write(folder, config)
    run, simulated = open_run(str(folder), jobs=1), generator.simulate(config)
    table = run.table
    place = {
        (gpu, start): row
        for row, (gpu, start) in enumerate(
            zip(table.gpu.tolist(), table.start_ns.tolist(), strict=True)
        )
    }
    whole = generator.Config(telemetry=False, **(options | {"lost_dispatches": 0.0}))
    kernels, found = 0, dict.fromkeys(COUNTED, (0, 0, 0))
    for rank in config.counter_ranks:
        gpu, shown = simulated.gpus[rank], set(simulated.traces[rank].activities)
        rows: dict[int, list[int]] = {}
        for iteration in config.shown_iterations:
            for position, activity in enumerate(program(gpu, iteration)):
                is_kernel = activity.is_compute and activity.kernel.category == "kernel"
                if is_kernel and activity in shown:
                    start = activity.start_ns + BASE_NS + RUN_START_NS
                    rows.setdefault(position, []).append(place[rank, start])
        kernels += sum(map(len, rows.values()))
        state = table.measured[COUNTER_MATCH]
        for counter in COUNTED:
            true: dict[int, list[float]] = {}
            for one_pass in profile(whole, gpu):
                if counter in one_pass.counters:
                    for each in one_pass.dispatches:
                        if each.place is not None:
                            true.setdefault(each.place[1], []).append(COUNTERS[counter](each))
            right, wrong, marked = found[counter]
            for position, own in rows.items():
                for row in own:
                    value = float(table.measured[counter][row])
                    if np.isnan(value):
                        continue
                    values = true.get(position, [])
                    if any(abs(value - one) <= 0.02 * max(abs(one), 1) for one in values):
                        right += 1
                    elif state[row] == Match.AMBIGUOUS:
                        marked += 1
                    else:
                        wrong += 1
            found[counter] = right, wrong, marked
    return kernels, found


COUNTED = ("GRBM_GUI_ACTIVE", "SQ_INSTS_VALU_MFMA_MOPS_BF16", "TCC_EA0_RDREQ_sum")
"""A counter of each pass."""
_LOSSES = ((0.0, 4), (0.002, 4), (0.015, 6), (0.05, 6), (0.25, 3), (0.25, 24))


def _collectives(seeds: range) -> Iterator[str]:
    yield "Launch records are lost in bursts; the ends of a collective scatter by 9 µs.\n"
    yield "| run | launches lost | collectives | right | wrong among shown |"
    yield "|---|---|---|---|---|"
    layouts = {
        "FSDP, 8 GPUs": Layout(gpus=8, layers=16),
        "FSDP with broadcasts, 4 GPUs": Layout(rooted=2),
        "tensor parallel 2, 8 GPUs": Layout(gpus=8, layers=16, tensor_parallel=2),
        "tensor parallel 4, 8 GPUs": Layout(gpus=8, layers=16, tensor_parallel=4),
    }
    for title, layout in layouts.items():
        for lost, stretches in _LOSSES:
            damage = Damage(labels=lost, stretches=stretches, scatter_ns=9_000)
            yield _row(title, lost, stretches, [damaged(s, layout, damage).score() for s in seeds])
    for title, style in {"files, FSDP2": {}, "files, FSDP1": {"strategy": "FSDP1"}}.items():
        for lost, stretches in _LOSSES:
            scores = []
            for seed in seeds[:3]:
                with TemporaryDirectory() as folder:
                    options = {"ranks": 4, "layers": 6, "seed": seed, "end_scatter_ns": 9_000}
                    options |= {"lost_share": lost, "lost_stretches": stretches}
                    scores.append(collectives_of_files(Path(folder), **options, **style))
            yield _row(title, lost, stretches, scores)


def _row(title: str, lost: float, stretches: int, scores: list[tuple[int, int, int]]) -> str:
    whole, right, wrong = np.array(scores).sum(axis=0).tolist()
    shown = max(right + wrong, 1)
    return (
        f"| {title} | {100 * lost:g} % in {stretches} | {whole:,} | {100 * right / whole:.1f} % | "
        f"{100 * wrong / shown:.2f} % |"
    )


def _counters(seeds: range) -> Iterator[str]:
    yield "Each of three passes loses dispatches on its own. Right and wrong are judged by value.\n"
    yield "| dispatches lost | counter | kernels | right | wrong among shown | marked |"
    yield "|---|---|---|---|---|---|"
    for lost in (0.0, 0.003, 0.01, 0.05):
        kernels, sums = 0, {counter: np.zeros(3, np.int64) for counter in COUNTED}
        for seed in seeds[:3]:
            with TemporaryDirectory() as folder:
                options = {"ranks": 2, "layers": 8, "seed": seed, "lost_dispatches": lost}
                count, found = counters_of_files(Path(folder), **options)
            kernels += count
            for counter, figures in found.items():
                sums[counter] += figures
        for counter, (right, wrong, marked) in sums.items():
            yield (
                f"| {100 * lost:g} % | {counter} | {kernels:,} | {100 * right / kernels:.1f} % | "
                f"{100 * wrong / max(right + wrong, 1):.2f} % | {100 * marked / kernels:.2f} % |"
            )


@lru_cache(maxsize=2)
def _simulated(**options: Any) -> tuple[Any, KernelTable]:
    """A simulated run of two GPUs and its activities as a table."""
    generator = load_generator()
    run = generator.simulate(generator.Config(ranks=2, counters=False, **options))
    kinds = {"kernel": Kind.COMPUTE, "gpu_memset": Kind.COMPUTE, "gpu_memcpy": Kind.COPY}
    rows = [
        Row(
            each.start_ns,
            each.end_ns - each.start_ns,
            Kind.COMM if each.is_comm else kinds[each.kernel.category],
            each.stream,
            trace.rank,
            iteration=0,
        )
        for trace in run.traces
        for each in trace.activities
    ]
    return run, table_of(rows)


def placed_telemetry(
    seed: int, period_ms: int, *, averages: bool, **options: Any
) -> tuple[Estimate | str, int]:
    """The estimated offset of samples of a simulated run, and the true one.

    Samples are means since the sample before, or instants; both are stamped when they are read.
    """
    run, table = _simulated(layers=16, iterations=3, seed=seed, **options)
    from generator import telemetry

    random = np.random.default_rng(seed)
    offset_ns = int(random.integers(-(10**15), 10**15))
    found: dict[tuple[int, SignalName], list[SignalSamples]] = {}
    for gpu in run.gpus:
        sensors = telemetry.signals(run.config, gpu)
        end_ns = sensors.busy.times_ns[-1] + _MARGIN_NS
        times = [int(random.integers(0, period_ms * MS)) - _MARGIN_NS]
        while times[-1] < end_ns:
            times.append(times[-1] + int(period_ms * MS * random.uniform(0.95, 1.05)))
        for name, steps, noise in (
            (SignalName.POWER_W, sensors.power_w, 15.0),
            (SignalName.GFX_UTIL_PCT, sensors.busy, 0.0),
        ):
            read = [
                steps.mean(before, now) if averages else steps.at(now)
                for before, now in pairwise(times)
            ]
            values = np.array(read) + random.normal(0, noise, len(read))
            stamps = np.array(times[1:], np.int64) - offset_ns
            found[gpu.rank, name] = [SignalSamples(stamps, values)]
    names = [GpuName(index=0), GpuName(index=1)]
    file = Telemetry(Path("made.csv"), "made", ClockDomain.UNKNOWN, 1, names, found, (), Losses())
    return Recording(file, table, {0: 0, 1: 1}).estimate(), offset_ns


STYLES: Sequence[Mapping[str, Any]] = (
    {}, {"strategy": "FSDP1"}, {"clean": True}, {"recompute": True},
)  # fmt: skip
_MARGIN_NS = 800 * MS


def _telemetry(seeds: range) -> Iterator[str]:
    yield "Files of power and utilization, on a clock unrelated to the trace's.\n"
    yield "| samples | period | files | placed | median error | largest | beyond the stated error |"
    yield "|---|---|---|---|---|---|---|"
    for averages in (True, False):
        for period_ms in (5, 10, 20):
            errors, broken, files = [], 0, 0
            for seed in seeds:
                style = STYLES[seed % len(STYLES)]
                found, true = placed_telemetry(seed, period_ms, averages=averages, **style)
                files += 1
                if isinstance(found, Estimate):
                    errors.append(abs(found.offset_ns - true) / MS)
                    broken += abs(found.offset_ns - true) > found.uncertainty_ns
            yield (
                f"| {'means' if averages else 'instants'} | {period_ms} ms | {files} | "
                f"{len(errors)} | {np.median(errors):.2f} ms | {max(errors):.1f} ms | {broken} |"
            )


PARTS: Mapping[str, Callable[[range], Iterator[str]]] = {
    "Collectives": _collectives,
    "Counters": _counters,
    "Telemetry": _telemetry,
}


def main() -> None:
    """Measure, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    lines = [_HEAD, f"Seeds {seeds[0]} to {seeds[-1]}; files with the first three."]
    for title, part in PARTS.items():
        print(f"measuring: {title}", file=sys.stderr, flush=True)
        lines += ["", f"## {title}", "", *part(seeds)]
    text = "\n".join(lines) + "\n"
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
