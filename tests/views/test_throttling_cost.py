"""What throttling costs: the same kernels with and without a limiter."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model import address
from chopper_core.views.query import frame_of
from tests.align.traces import GEMM, TinyTrace

START_S = 1_726_000_000


def test_the_same_kernel_unthrottled_tells_the_cost(tmp_path: Path) -> None:
    # GPU 0 is limited in the second half: its kernels, one after the other, take 26 ms instead of
    # 20. GPU 1 has as much to do and waits for nothing.
    for rank in range(2):
        about = {"rank": rank, "world_size": 2}
        members = {"distributedInfo": about, "baseTimeNanoseconds": START_S * 10**9}
        trace = TinyTrace(device=rank, members=members)
        for step in range(2):
            trace.note(f"ProfilerStep#{step}", 520_000 * step, 520_000 * (step + 1) - 1)
            for number in range(20):
                at = 520_000 * step + 10 * number
                before = 20_000 * number + 6_000 * (rank == 0) * max(number - 10, 0)
                trace.op("aten::mm", at, at + 8)
                trace.launch(
                    GEMM, at + 2, start=520_000 * step + 20 + before,
                    duration=20_000 + 6_000 * (rank == 0 and number >= 10),
                )  # fmt: skip
            trace.host("cuda_runtime", "cudaDeviceSynchronize", at + 10, 520_000 * step + 480_000)
        trace.write(tmp_path / f"rank{rank}.json")
    lines = ["time_ns,gpu,throttle_pct,power_w"]
    for sample in range(208):
        at = START_S * 10**9 + 5_000_000 * sample
        limited = (5 * sample) % 520 >= 199
        lines += [f"{at},{gpu},{100 * (gpu == 0 and limited)},600" for gpu in range(2)]
    (tmp_path / "telemetry.csv").write_text("# clock: epoch\n" + "\n".join([*lines, ""]))
    run = open_run(str(tmp_path), jobs=1)
    found = frame_of(run, address.parse("R?view=findings"))
    (row,) = [n for n, text in enumerate(found.labels) if "throttled" in text]
    # Ten kernels an iteration, 6 ms each, on one of two GPUs; the step is the mean of both. One
    # replay removes that the GPU is late and what makes it late: one saving.
    whole = int(found.values["part_of"].numbers[row]) - 1
    assert found.values["saving_ns"].numbers[whole] == pytest.approx(30e6, rel=0.1)
    assert found.values["saving_ns"].missing[row]
    assert found.values["cost_ns"].numbers[row] == pytest.approx(60e6, rel=0.1)
