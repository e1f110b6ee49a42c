"""The memory of long jobs by logs and events of traces: why it was full, growth, what is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chopper_core.analyses.memory import failed_allocations, growth_by_events
from chopper_core.extensions.runs.figures import figures_of_run
from chopper_core.findings import checked
from chopper_core.ingest.follow import Follower
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.training import FailedAllocations, TrainedPhases, TrainedSteps
from chopper_core.sources.registry import Family, read_source
from chopper_core.sources.trainer.steps import TrainerLog
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.views.query import query
from tests.align.test_memory import event, memory
from tests.support import opened_events
from tests.wording import Wording

GIB = 2**30
NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.50 GiB. GPU 2 has a total "
    "capacity of 80.00 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process "
    "has 78.50 GiB memory in use. Of the allocated memory 66.00 GiB is allocated by PyTorch, with "
    "48.00 MiB allocated in private pools (e.g., CUDA Graphs), and 8.50 GiB is reserved by PyTorch "
    "but unallocated. If reserved but unallocated memory is large try setting …"
)
OF_2_0 = (
    "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 32.00 MiB. GPU 0 has a "
    "total capacty of 64.00 GiB of which 0 bytes is free. Of the allocated memory 63.00 GiB is "
    "allocated by PyTorch, and 463.50 MiB is reserved by PyTorch but unallocated."
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 1; 40.00 GiB total "
    "capacity; 20.00 GiB already allocated; 512.00 MiB free; 22.00 GiB reserved in total by "
    "PyTorch)"
)
CACHED = (
    "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.00 GiB total "
    "capacity; 8.50 MiB already allocated; 9.00 GiB free; 4.50 MiB cached)"
)
XLA = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1048576 bytes."
SIZES = ("asked", "capacity", "free", "allocated", "unallocated")


def titan(
    steps: range, gib: Callable[[int], float] = lambda _: 60.0, ranks: int = 2, of: float = 80
) -> str:
    return "".join(
        f"[rank{rank}]:[titan] 2026-03-05 08:{40 + step // 60:02}:{step % 60:02} - root - INFO - "
        f"step: {step:2}  loss:  8.0  memory: {gib(step):.3f}GiB({100 * gib(step) / of:.4f}%)  "
        f"tps: 7,282  tflops: 400.00  mfu: 40.00%\n"
        for step in steps
        for rank in range(ranks)
    )


def titles(run: Run) -> dict[str, tuple[str, str]]:
    """The title and detail of the finding of each rule."""
    return {
        rule.name: (each.title, each.detail) for (rule, each), _ in checked(run, parse("R")).placed
    }


@pytest.mark.parametrize(
    ("message", "device", "gib"),
    [
        (NEW, 2, (4.5, 80, 1, 66, 8.5)),
        (OF_2_0, 0, (1 / 32, 64, 0, 63, 463.5 / 1024)),
        (OLD, 1, (2, 40, 0.5, 20, 2)),
        (CACHED, 0, (12.5 / 1024, 10, 9, 8.5 / 1024, 0)),
        (XLA, -1, (1 / 1024, None, None, None, None)),
    ],
)
def test_messages_of_each_release(
    tmp_path: Path, message: str, device: int, gib: tuple[float | None, ...]
) -> None:
    """The sizes of a message, behind the last step of its rank, printed three times."""
    lines = titan(range(1, 6)).splitlines(keepends=True)
    twice = f"[rank1]: {message}\n\x1b[31m2026-03-05 08:40:09 ERROR {message}\x1b[0m\n"
    text = "".join(lines[:-2]) + f"[rank1]:Traceback\n{twice}[rank1]: {message}\n" + lines[-2]
    (tmp_path / "train.log").write_text(text)
    run = open_run(str(tmp_path / "train.log"))
    rows = run.side(FailedAllocations)
    assert (rows.rank.tolist(), rows.step.tolist(), rows.device.tolist()) == ([1], [4], [device])
    found = [getattr(rows, f"{name}_bytes")[0] for name in SIZES]
    assert found == [-1 if each is None else round(each * GIB) for each in gib]
    assert len(run.side(TrainedSteps)) == 9


def test_what_filled_the_memory(tmp_path: Path, wording: Wording) -> None:
    """8.5 GiB in pieces when 4.5 were wanted: fragmentation. Else others' memory, or tensors."""

    def found(message: str) -> tuple[str, str]:
        path = tmp_path / "train.log"
        path.write_text(titan(range(1, 31)) + f"[rank1]: {message}\n")
        run = open_run(str(path))
        first = query(run, parse("R")).headline
        wording.among(first, "out of memory on rank 1", "step 30")
        (rule, each), _ = checked(run, parse("R")).placed[0]
        assert rule.name == "out-of-memory"
        return each.title, each.detail

    title, detail = found(NEW)
    wording(title, "Out of memory on rank 1", "step 30", "4.832 GB wanted", "1.074 GB free")
    assert "it is fragmented" in detail and "expandable_segments" in detail
    # 80 - 1 - 66 - 8.5 GiB.
    wording(detail, "4.832 GB", "PyTorch")
    _, detail = found(NEW.replace("8.50 GiB", "0.50 GiB").replace("66.00 GiB", "60.00 GiB"))
    wording(detail, "no tensor")
    _, detail = found(NEW.replace("8.50 GiB", "0.50 GiB").replace("66.00 GiB", "77.00 GiB"))
    wording(detail, "Tensors")


def test_a_job_that_fails_and_starts_again(tmp_path: Path) -> None:
    """Each failure belongs to the start that it ends; a store keeps them."""
    text = "".join(titan(range(first, first + 20)) + f"[rank0]: {NEW}\n" for first in (1, 11, 21))
    (tmp_path / "train.log").write_text(text)
    run = open_run(str(tmp_path / "train.log"))
    write_store(run, tmp_path / "store")
    for each in (run, read_store(tmp_path / "store")):
        found = failed_allocations(each)
        assert [(one.attempt, one.step) for one in found] == [(0, 20), (1, 30), (2, 40)]
    assert titles(run)["out-of-memory"][0].endswith("(and twice more)")


def test_the_table_of_runs_says_what_ended_a_job(tmp_path: Path, wording: Wording) -> None:
    """One job ends with a failed allocation; one goes on after it."""
    for name, more in (("ended", ""), ("again", titan(range(11, 21)))):
        (tmp_path / name).mkdir()
        text = titan(range(1, 21)) + f"[rank0]: {NEW}\n" + more
        (tmp_path / name / "train.log").write_text(text)
        row = figures_of_run(open_run(str(tmp_path / name)))
        assert row.status == ("short" if name == "ended" else "ok")
        wording(row.reason, *(("out of memory on rank 0", "step 20") if name == "ended" else ()))


def test_failures_of_a_log_that_grows(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    path = folder / "train.log"
    path.write_text(titan(range(1, 11)))
    follower = Follower(str(folder), jobs=1)
    try:
        for more, expected in (("", []), (f"[rank0]: {NEW}\n", [10]), (titan(range(11, 13)), [10])):
            path.write_text(path.read_text() + more)
            follower._read_run(lambda *_: None)
            assert follower.run is not None
            assert follower.run.side(FailedAllocations).step.tolist() == expected
    finally:
        follower.close()


def test_growth_fragments_and_headroom_of_a_log(tmp_path: Path, wording: Wording) -> None:
    """From 60 GiB by 0.05 GiB per step: 20 GiB of 80 are left, full at step 400."""
    path = tmp_path / "train.log"
    path.write_text(titan(range(1, 301), lambda step: 60 + 0.05 * step))
    run = open_run(str(path))
    title, detail = titles(run)["memory-growth"]
    wording(title, "53.69 MB per step")
    wording(detail, "full at step 400")
    at = int(detail.partition("full at step ")[2].split(".")[0].replace(",", ""))
    assert at == pytest.approx(400, abs=1)
    left = query(run, parse("R?view=training")).total["free_memory_bytes"]
    assert left == pytest.approx(5 * GIB, rel=1e-4)
    path.write_text(titan(range(1, 301), lambda _: 78.0))
    assert set(titles(open_run(str(path)))) == {"little-memory"}
    path.write_text(titan(range(1, 301), lambda _: 60.0))
    assert titles(open_run(str(path))) == {}
    both = " - perf/max_memory_allocated_gb:40.0 - perf/max_memory_reserved_gb:60.0"
    path.write_text("".join(f"step:{n} - timing_s/step:4.0{both}\n" for n in range(1, 31)))
    title, _ = titles(open_run(str(path)))["fragmented-memory"]
    wording(title, "21.47 GB", "33.3 %")


def test_memory_and_timers_of_each_rank_of_megatron(tmp_path: Path) -> None:
    """Reports that two ranks write into one line; times with `--timing-log-option all`."""

    def report(rank: int) -> str:
        return (
            f"[Rank {rank}] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: "
            f"{1000.5 + rank} | reserved: 2.0 | max reserved: {2000.0 + rank}"
        )

    text = ""
    for step in (1, 2, 3):
        text += (
            f" [2026-03-05 08:40:0{step}] iteration        {step}/      10 | elapsed time per "
            f"iteration (ms): 1000.0 | lm loss: 3.0 |\n{(report(0) + report(1)) * (step == 2)}\n"
            "times across ranks (ms):\n"
        )
        for name in ("forward-compute", "optimizer"):
            text += f"  {name}:\n" + "".join(
                f"     rank {rank:2d}: {100 * step + rank * (name[0] == 'f'):.2f}\n"
                for rank in range(12)
            )
    (tmp_path / "m.log").write_text(text)
    run = open_run(str(tmp_path / "m.log"))
    rows, phases = run.side(TrainedSteps), run.side(TrainedPhases)
    assert len(rows) == 3 * 13 and len(phases) == 3 * 12 * 2
    known = np.flatnonzero(np.isfinite(rows.reserved_bytes))
    assert rows.rank[known].tolist() == [0, 1] and set(rows.step[known].tolist()) == {2}
    assert rows.memory_bytes[known].tolist() == [1000.5 * 2**20, 1001.5 * 2**20]
    own = (phases.phase == phases.names.index("forward-compute")) & (rows.step[phases.row] == 3)
    assert phases.time_ns_each[own].tolist() == [1e6 * (300 + rank) for rank in range(12)]
    frame = query(run, parse("R?view=training&by=stage"))
    at = list(frame.labels).index("forward-compute")
    # Steady are the steps after the first: the median of ranks 0 to 11 is 5.5 above 250.
    assert frame.values["stage_ns"].at(at) == pytest.approx(255.5e6)
    slowest = frame.values["slowest_rank"]
    assert slowest.words[int(slowest.numbers[at])] == "11"
    assert frame.values["stage_behind_pct"].at(at) == pytest.approx(100 * (261 / 255.5 - 1))
    assert query(run, parse("R?view=training")).total["logged_step_ns"] == 1e9


def test_lines_of_megatron_deepspeed(tmp_path: Path) -> None:
    """Its newer lines have `key=value`."""
    line = (
        "[2026-03-05 08:40:0{n}][INFO][training:1251] -  iteration=       {n}/  317892 | "
        "consumed_samples=         256 | elapsed_time_per_iteration_ms=17711.{n} | "
        "learning_rate=0.0001 | lm loss=11.20{n} | samples_per_second=7.053 | "
        "tokens_per_gpu_per_second_tgs=1203.674 | [LM]-TFLOPs=49.66 | [DS]-TFLOPs=73.32 |\n"
    )
    path = tmp_path / "train.log"
    path.write_text("".join(line.format(n=n) for n in (1, 2, 3)))
    log: TrainerLog = read_source(path, Family.TRAINER)
    assert log.figures["step_ns"].tolist() == pytest.approx([17711.1e6, 17711.2e6, 17711.3e6])
    assert log.figures["loss"].tolist() == [11.201, 11.202, 11.203]
    assert log.figures["tokens_per_s"].tolist() == [1203.674] * 3
    assert log.figures["tflops"].tolist() == [49.66] * 3


@pytest.mark.parametrize("leaks", [True, False])
def test_steps_of_a_trace_that_keep_memory(tmp_path: Path, leaks: bool, wording: Wording) -> None:
    """Each of four steps keeps 64 MiB that aten::cat allocates; the rest is released."""
    events, allocated, now = [], 10 * GIB, 0.0
    for step in range(4):
        begin = now
        for name, size in (("aten::mm", 256 << 20), ("aten::cat", 64 << 20)):
            events.append(event("cpu_op", name, now, now + 40))
            allocated += size
            totals = {"Total Allocated": allocated, "Total Reserved": 20 * GIB}
            events.append(memory(now + 1, size, step * 16 + len(name), **totals))
            number = len(events)
            events.append(event("cuda_runtime", "cudaLaunchKernel", now + 5, now + 8,
                                correlation=number))  # fmt: skip
            events.append(event("kernel", "k", now + 10, now + 30, device=0, stream=7,
                                correlation=number))  # fmt: skip
            if name == "aten::mm" or not leaks:
                allocated -= size
                totals = {"Total Allocated": allocated, "Total Reserved": 20 * GIB}
                events.append(memory(now + 6, -size, step * 16 + len(name), **totals))
            now += 50
        events.append(event("user_annotation", f"ProfilerStep#{step}", begin, now))
    run = opened_events(tmp_path, events)
    found = growth_by_events(run)
    assert bool(found) == leaks and ("memory-growth" in titles(run)) == leaks
    if leaks:
        assert found[0].each_bytes == 64 << 20 and found[0].operator == "aten::cat"
        wording(titles(run)["memory-growth"][1], "aten::cat")
    assert "fragmented-memory" in titles(run)
