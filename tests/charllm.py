"""Directories in CharLLM-PPT's format, the same in each run of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.pipelines import Pipeline, fitting, generate

START_S = 1_726_000_000
WRAP = 2**32
STEPS = {
    "pcie_rx_bytes": 1_000_003,
    "pcie_tx_bytes": 700_001,
    "nvlink_rx_throughput": 104_857,
    "nvlink_tx_throughput": 99_991,
}
"""Counter → its step between two samples; each wraps once."""


def stamp(rank: int, sample: int) -> str:
    """Seconds since the epoch, about 50 ms apart and a little later on each rank."""
    us = 50_000 * sample + 137 * ((sample * 7) % 5) + 11 * rank
    return f"{START_S + us // 10**6}.{us % 10**6:06d}"


def metrics(rank: int) -> dict[str, Callable[[int], int]]:
    """Metric → its value at a sample."""
    found: dict[str, Callable[[int], int]] = {
        "gpu_power": lambda i: 400 + 5 * (rank % 8) + (i * 13 + rank * 7) % 151,
        "mem_power": lambda i: (400 + 5 * (rank % 8) + (i * 13 + rank * 7) % 151) // 5,
        "gpu_thermal": lambda i: 50 + rank % 8 + (i * 3) % 11,
        "mem_thermal": lambda i: 60 + rank % 8 + i % 7,
        "sm_clock": lambda i: 1980 - 15 * ((i + rank) % 9),
        "mem_clock": lambda i: 2619,
        "gpu_util": lambda i: 100 if i % 10 else 37,
        "mem_util": lambda i: 40 + i % 5,
    }
    for name, step in STEPS.items():
        found[name] = lambda i, step=step: (WRAP - 5 * step + i * step) % WRAP  # type: ignore[misc]
    return found


def write(folder: Path, name: str, rank: int, values: Iterable[int | float]) -> Path:
    """One file: a line per sample."""
    path = folder / f"{name}_{rank}.csv"
    lines = (f"{stamp(rank, sample)},{value}\n" for sample, value in enumerate(values))
    path.write_text("".join(lines))
    return path


def directory(folder: Path, ranks: int = 32, samples: int = 200, only: Iterable[str] = ()) -> Path:
    """A run's directory: a file per metric and rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        for name, value in metrics(rank).items():
            if not only or name in only:
                write(folder, name, rank, (value(sample) for sample in range(samples)))
    return folder


SAMPLE_NS = 5_000_000
IB_STEPS = {"ib0": {"rx": 100_003, "tx": 80_001}, "ib1": {"rx": 30_007, "tx": 20_011}}
"""Device of a node → direction → the step of its counter between two samples."""


def write_ib(folder: Path, rank: int, samples: int, period_ns: int = SAMPLE_NS) -> None:
    """The InfiniBand counters of a node, which the process of one of its ranks samples."""
    for device, steps in IB_STEPS.items():
        for way, step in steps.items():
            lines = []
            for sample in range(samples):
                us = sample * period_ns // 1000
                at = f"{START_S + us // 10**6}.{us % 10**6:06d}"
                lines.append(f"{at},{10**9 + sample * step}\n")
            path = folder / f"system_ib_{way}_bytes_rank_{rank}_id_{device}.csv"
            path.write_text("".join(lines))


def watts(rank: int, sample: int) -> int:
    """The power of a rank of an experiment: each its own, and changing."""
    return 480 + 13 * rank + 40 * (sample % 5)


def joules(rank: int, begin_ns: int, end_ns: int, more_w: int = 0) -> float:
    """The energy of a rank from one time to another since the epoch: each sample holds until the
    next one, the last one for a period."""
    found, last = 0.0, -(-(end_ns - START_S * 10**9) // SAMPLE_NS)
    for sample in range(last + 1):
        since = START_S * 10**9 + sample * SAMPLE_NS
        held = min(end_ns, since + SAMPLE_NS) - max(begin_ns, since)
        found += max(held, 0) * 1e-9 * (watts(rank, sample) + more_w)
    return found


class Experiment(NamedTuple):
    """What is planted in an experiment: of the schedule, and of the telemetry of all ranks."""

    schedule: Mapping[str, Any]
    more_w: int = 0
    more_c: int = 0
    less_mhz: int = 0


def experiment(
    folder: Path,
    *,
    settings: str = "",
    late: bool = False,
    more_w: int = 0,
    more_c: int = 0,
    less_mhz: int = 0,
    **given: Any,
) -> tuple[Pipeline, list[tuple[int, int]]]:
    """An experiment as CharLLM-PPT leaves it: tp 2 x dp 2 x pp 2 on 8 GPUs, whose telemetry all
    ranks write, and whose traces those with tp 0 and dp 0; `late` has samples beyond the end.

    Returns its schedule, and begin and end of each step in µs.
    """
    sizes = {"pp": 2, "dp": 2, "microbatches": 4, "sample_us": SAMPLE_NS // 1000}
    config = fitting(Pipeline(**{**sizes, **given}))
    truth = generate(folder, config)
    traces = folder / "123_kineto"
    traces.mkdir()
    for rank in range(config.ranks):
        trace = folder / f"rank{rank}.json"
        if rank % (config.tp * config.dp):
            trace.unlink()
        else:
            trace.rename(traces / f"rank-{rank}.json")
    end_us = truth["steps_us"][-1][1] + 2 * late * config.sample_us
    for rank in range(config.ranks):
        samples = range(-(-end_us // config.sample_us))
        every = metrics(rank)
        heat, clock = every["gpu_thermal"], every["sm_clock"]
        every |= {
            "gpu_power": lambda sample, rank=rank: watts(rank, sample) + more_w,
            "gpu_thermal": lambda sample, heat=heat: heat(sample) + more_c,
            "sm_clock": lambda sample, clock=clock: clock(sample) - less_mhz,
        }
        for name, value in every.items():
            lines = []
            for sample in samples:
                at_us = sample * config.sample_us
                lines.append(f"{START_S + at_us // 10**6}.{at_us % 10**6:06d},{value(sample)}\n")
            (folder / f"{name}_{rank}.csv").write_text("".join(lines))
    if settings:
        (folder / "job.yaml").write_text(settings)
    return config, truth["steps_us"]


OPTIONS: Final = {
    "gpt3-175b_1_00000": Experiment({}),
    "gpt3-175b_1_10000": Experiment({"overlap": True}, more_w=40, more_c=4, less_mhz=30),
    "gpt3-175b_1_01000": Experiment({"recompute": True}, more_w=-30, more_c=-3),
}
"""A base, overlap of communication (cc), and recomputation of activations (act)."""
MICROBATCHES: Final = {
    "llama3-70b_1_mbs1": Experiment({"microbatches": 8, "forward_us": 300}),
    "llama3-70b_1_mbs2": Experiment({"microbatches": 4, "forward_us": 550}, 50, 2, 15),
    "llama3-70b_1_mbs4": Experiment({"microbatches": 2, "forward_us": 1_050}, 110, 7, 60),
}
"""Fewer, larger microbatches: less overhead, more bubble, and more heat."""


def sweep(folder: Path, settings: str) -> dict[str, tuple[Pipeline, list[tuple[int, int]]]]:
    """A directory of all these experiments, each in a directory of its name."""
    return {
        name: experiment(
            folder / name,
            settings=settings,
            late=True,
            steps=2,
            more_w=each.more_w,
            more_c=each.more_c,
            less_mhz=each.less_mhz,
            **each.schedule,
        )
        for name, each in {**OPTIONS, **MICROBATCHES}.items()
    }
