"""Telemetry beside a profiler's own dispatches, which are stamped since the boot."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.views.query import query
from tests.wording import Wording

MS = 1_000_000
BOOT_NS = 81_097_000 * MS
EPOCH_NS = 1_754_585_900_000 * MS
TRACE = (
    "Kind,Agent_Id,Queue_Id,Kernel_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp,"
    "Dispatch_Id"
)


def opened(folder: Path, clock: str, heading: str, *stamps: tuple[int, ...]) -> Run:
    """Two kernels, from 0 to 10 ms and from 20 to 30 ms, and three samples of the clock."""
    rows = [
        f"KERNEL_DISPATCH,4,1,{n},gemm{n},{n},{BOOT_NS + start * MS},{BOOT_NS + end * MS},{n}"
        for n, (start, end) in enumerate([(0, 10), (20, 30)])
    ]
    (folder / "1_kernel_trace.csv").write_text("\n".join((TRACE, *rows)) + "\n")
    lines = [f"# clock: {clock}", f"{heading},gpu,gfx_mhz"]
    lines += [
        f"{','.join(map(str, stamp))},0,{mhz}"
        for stamp, mhz in zip(stamps, (1500, 1600, 1700), strict=True)
    ]
    (folder / "samples.csv").write_text("\n".join(lines) + "\n")
    return open_run(str(folder))


def clocks(run: Run) -> dict[str, float | None]:
    frame = query(run, parse("R?order=kernel&columns=gfx_mhz"))
    return {label: frame.row(row)["gfx_mhz"] for row, label in enumerate(frame.labels)}


@pytest.mark.parametrize(
    ("clock", "why"),
    [
        ("boottime", "known: its clock is the run's"),
        ("monotonic", "CLOCK_MONOTONIC is the run's CLOCK_BOOTTIME unless the host slept"),
    ],
)
def test_clocks_of_one_boot_are_the_same(tmp_path: Path, clock: str, why: str) -> None:
    stamps = [(BOOT_NS + at * MS,) for at in (5, 15, 25)]
    run = opened(tmp_path, clock, "time_ns", *stamps)
    (source,) = run.telemetry
    assert (source.offset_ns, source.method) == (0, why)
    assert clocks(run) == {"gemm0": 1500, "gemm1": 1700}


def test_a_sampler_with_both_clocks_ties_the_epoch_to_the_boot(
    tmp_path: Path, wording: Wording
) -> None:
    stamps = [(EPOCH_NS + at * MS, BOOT_NS + at * MS) for at in (5, 15, 25)]
    run = opened(tmp_path, "epoch", "time_ns,monotonic_ns", *stamps)
    (source,) = run.telemetry
    assert source.offset_ns == BOOT_NS - EPOCH_NS
    wording(source.method, "CLOCK_MONOTONIC")
    assert clocks(run) == {"gemm0": 1500, "gemm1": 1700}


def test_the_epoch_alone_says_nothing_of_the_boot(tmp_path: Path) -> None:
    stamps = [(EPOCH_NS + at * MS,) for at in (5, 15, 25)]
    run = opened(tmp_path, "epoch", "time_ns", *stamps)
    (source,) = run.telemetry
    assert source.offset_ns is None
    assert clocks(run) == {"gemm0": None, "gemm1": None}
