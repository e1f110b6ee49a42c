"""Recorded directories: planted clocks, GPUs and load steps are found again on opening."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.record import manifest
from chopper_core.record.anchors import Anchor
from chopper_core.record.manifest import RecordedGpu, RecordedNode, RecordedProcess
from chopper_core.render.info import info_text
from chopper_core.views.query import query
from tests.wording import Wording

MS, SECOND = 1_000_000, 1_000_000_000
EPOCH_NS = 1_754_585_900 * SECOND
BOOT_NS = 81_097 * SECOND
SLEPT_NS = 7 * SECOND
"""By how much the time since boot is ahead of the monotonic clock: the host slept."""
CLOCKS = {"epoch": EPOCH_NS, "monotonic": BOOT_NS, "boottime": BOOT_NS + SLEPT_NS}
BUSY = ((100, 130), (160, 190), (220, 250))
"""The kernels of rank 0, in ms; those of rank 1 are 30 ms later."""
PERIOD_MS = 5


def trace(folder: Path, rank: int, world: int = 2) -> None:
    folder.mkdir(exist_ok=True)
    events = [
        {
            "ph": "X", "cat": "kernel", "name": f"gemm{number}", "pid": 0, "tid": 7,
            "ts": (begin + 30 * (rank % 2)) * 1e3, "dur": (end - begin) * 1e3,
            "args": {"device": 0, "stream": 7, "correlation": number},
        }
        for number, (begin, end) in enumerate(BUSY)
    ]  # fmt: skip
    document = {
        "traceEvents": events,
        "baseTimeNanoseconds": EPOCH_NS,
        "distributedInfo": {"rank": rank, "world_size": world},
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(document))


def is_busy(rank: int, at_ms: int) -> bool:
    return any(begin <= at_ms - 30 * (rank % 2) < end for begin, end in BUSY)


def telemetry(
    run: Path, host: str, ranks: Sequence[int], pci: Sequence[str], clock: str, shift_ns: int = 0
) -> str:
    """Samples of GPUs in an order unlike the ranks': 700 W while a rank works, 150 W otherwise."""
    column = {"epoch": "time_ns", "boottime": "time_ns", "monotonic": "monotonic_ns"}[clock]
    lines = [f"# clock: {clock}", f"{column},gpu,pci,power_w"]
    for at_ms in range(0, 400, PERIOD_MS):
        for number, rank in enumerate(reversed(ranks)):
            at_ns = CLOCKS[clock] + at_ms * MS + shift_ns
            watts = 700 if is_busy(rank, at_ms) else 150
            lines.append(f"{at_ns},{number},{pci[len(pci) - 1 - number]},{watts}")
    name = f"telemetry-{host}.csv"
    (run / name).write_text("\n".join(lines) + "\n")
    return name


def anchors(set_ns: int = 0) -> list[Anchor]:
    """One at the begin, one after 0.2 s, between which the clock may be set."""
    return [
        Anchor(EPOCH_NS + moved, BOOT_NS + at, BOOT_NS + SLEPT_NS + at, 400)
        for at, moved in ((0, 0), (200 * MS, 200 * MS + set_ns))
    ]


PCI = ("0000:0c:00.0", "0000:1c:00.0")


def recorded(run: Path, clock: str, **node: object) -> Path:
    manifest.start_manifest(run, ["torchrun", "--nproc-per-node", "2", "train.py"])
    for rank in range(2):
        trace(run / "step10", rank)
        own = RecordedGpu(0, PCI[rank], name="AMD Instinct MI300X")
        windows = [{"first": 10, "last": 12, "state": "written", "file": f"rank{rank}.json"}]
        process = RecordedProcess(
            "n1", 100 + rank, rank, rank, 2, "2.9.0", own, "ended", 20, windows
        )
        manifest.publish_part(run, process)
    name = telemetry(run, "n1", (0, 1), PCI, clock)
    known = {"anchors": anchors(), "files": [name], **node}
    manifest.publish_part(run, RecordedNode("n1", **known))
    (run / "processes" / ".loaded").touch()
    manifest.finish_manifest(run, 0)
    return run


def powers(run: Run) -> dict[int, float]:
    """The mean power of each GPU while its kernels run."""
    frame = query(run, parse("R?columns=power_w"))
    return {row: frame.row(row)["power_w"] for row in range(len(frame.labels))}


@pytest.mark.parametrize("clock", ["epoch", "monotonic", "boottime"])
def test_the_clock_of_telemetry_is_known(tmp_path: Path, clock: str, wording: Wording) -> None:
    run = open_run(str(recorded(tmp_path / "run", clock)))
    (source,) = run.telemetry
    assert source.offset_ns == EPOCH_NS - CLOCKS[clock]
    anchored = ("2 anchors of n1", "0.2 µs")
    wording(source.method, "known", *(("the run's",) if clock == "epoch" else anchored))
    # The first GPU of the file is that of rank 1, by its place on the bus.
    assert source.gpus == {0: 1, 1: 0}
    assert {each.by for each in run.identities} == {"PCI bus"}
    assert [gpu.pci for gpu in run.gpus] == list(PCI)
    assert [each.problems for each in run.recordings] == [()]
    # A sample stands for the time up to the middle to its neighbours: half a period at each end.
    share = PERIOD_MS / 2 / 30
    for watts in powers(run).values():
        assert watts == pytest.approx(700 - share * 550)


def test_without_anchors_the_monotonic_clock_is_no_guess(tmp_path: Path) -> None:
    run = open_run(str(recorded(tmp_path / "run", "monotonic", anchors=[])))
    (source,) = run.telemetry
    assert "known" not in source.method


def test_a_clock_that_was_set_is_named_and_the_nearest_anchor_counts(
    tmp_path: Path, wording: Wording
) -> None:
    folder = recorded(tmp_path / "run", "monotonic", anchors=anchors(set_ns=3 * SECOND))
    run = open_run(str(folder))
    # The trace's first kernel is 0.1 s after the first anchor, on the clock before it was set.
    assert run.telemetry[0].offset_ns == EPOCH_NS - BOOT_NS
    findings = query(run, parse("R?view=findings")).labels
    wording.among(findings, "n1: ", "+3 s")


def test_two_nodes_have_gpus_at_the_same_places(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    manifest.start_manifest(run_dir, ["srun", "train.py"])
    for rank in range(4):
        trace(run_dir / "step10", rank, world=4)
        host = f"n{1 + rank // 2}"
        own = RecordedGpu(0, PCI[rank % 2])
        manifest.publish_part(run_dir, RecordedProcess(host, rank, rank, rank % 2, 4, "2.9", own))
    for host, ranks in (("n1", (0, 1)), ("n2", (2, 3))):
        name = telemetry(run_dir, host, ranks, PCI, "monotonic")
        manifest.publish_part(run_dir, RecordedNode(host, anchors(), files=[name]))
    manifest.finish_manifest(run_dir, 0)
    run = open_run(str(run_dir))
    assert [source.gpus for source in run.telemetry] == [{0: 1, 1: 0}, {0: 3, 1: 2}]
    assert {clock.name: clock.ranks for clock in run.hosts} == {"n1": (0, 1), "n2": (2, 3)}
    assert run.failed == ()


def test_directories_of_two_nodes_open_together(tmp_path: Path) -> None:
    for number, host in enumerate(("n1", "n2")):
        run_dir = tmp_path / host
        manifest.start_manifest(run_dir, ["torchrun", "train.py"])
        trace(run_dir / "step10", number)
        own = RecordedGpu(0, PCI[0])
        manifest.publish_part(run_dir, RecordedProcess(host, 5, number, 0, 2, "2.9", own))
        name = telemetry(run_dir, host, (number,), PCI[:1], "monotonic")
        manifest.publish_part(run_dir, RecordedNode(host, anchors(), files=[name]))
        manifest.finish_manifest(run_dir, 0)
    run = open_run(f"{tmp_path}/n1,{tmp_path}/n2")
    assert [source.gpus for source in run.telemetry] == [{0: 0}, {0: 1}]
    assert len(run.recordings) == 2


def test_a_uuid_leads_to_the_place_on_the_bus(tmp_path: Path) -> None:
    run_dir = recorded(tmp_path / "run", "epoch")
    for rank in range(2):
        own = RecordedGpu(0, uuid=f"0000000{rank}-aa")
        manifest.publish_part(run_dir, RecordedProcess("n1", 100 + rank, rank, rank, 2, "", own))
    gpus = [RecordedGpu(n, PCI[1 - n], f"GPU-0000000{1 - n}-AA") for n in range(2)]
    node = RecordedNode("n1", anchors(), gpus, files=["telemetry-n1.csv"])
    manifest.publish_part(run_dir, node)
    assert open_run(str(run_dir)).telemetry[0].gpus == {0: 1, 1: 0}


def test_a_single_process_without_a_rank_has_its_gpu(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    manifest.start_manifest(run_dir, ["python", "train.py"])
    trace(run_dir / "step10", 0, world=1)
    windows = [manifest.RecordedWindow(10, 12, "written", "step10/rank0.json")]
    own = RecordedGpu(0, PCI[1])
    manifest.publish_part(run_dir, RecordedProcess("n1", 7, device=own, windows=windows))
    name = telemetry(run_dir, "n1", (1, 0), PCI, "monotonic")
    manifest.publish_part(run_dir, RecordedNode("n1", anchors(), files=[name]))
    manifest.finish_manifest(run_dir, 0)
    run = open_run(str(run_dir))
    assert [gpu.pci for gpu in run.gpus] == [PCI[1]]
    # The other GPU of the node is none of the run's.
    assert run.telemetry[0].gpus == {0: 0}


def test_what_a_killed_recording_lacks_is_named(tmp_path: Path, wording: Wording) -> None:
    run_dir = recorded(tmp_path / "run", "epoch")
    (run_dir / "step10" / "rank1.json").unlink()
    windows = [{"first": 10, "last": 11, "state": "recording"}]
    killed = RecordedProcess("n1", 101, 1, 1, 2, "2.9.0", None, "running", 11, windows)
    killed.step_times = {"inside": 2, "inside_ns": 11 * MS, "outside": 7, "outside_ns": 10 * MS}
    manifest.publish_part(run_dir, killed)
    document = json.loads((run_dir / "run.json").read_text())
    del document["ended_ns"], document["returncode"], document["nodes"], document["processes"]
    (run_dir / "run.json").write_text(json.dumps(document))
    (run_dir / "processes" / "n1-7.json").write_text('{"host": "n1", "pid"')
    run = open_run(str(run_dir))
    text = str(info_text(run))
    wording.among(text, "the recording", "killed")
    wording.among(text, "rank 1: ", "steps 10–11", "killed")
    wording.among(text, "processes/n1-7.json")
    assert "torchrun --nproc-per-node 2 train.py" in text
    wording.among(text, "+10 %", "11 ms in a window", "10 ms outside", "2 and 7")
    assert "files not read" not in text
    assert [path for path, _ in run.skipped] == []
    usual = query(run, parse("R?view=overview")).headline
    assert not any("recording slows" in line for line in usual)
    killed.step_times["inside_ns"] = 30 * MS
    manifest.publish_part(run_dir, killed)
    slowed = query(open_run(str(run_dir)), parse("R?view=overview")).headline
    (line,) = (line for line in slowed if "recording slows" in line)
    wording(line, "200 % longer")


def test_a_damaged_manifest_costs_only_what_it_knows(tmp_path: Path) -> None:
    run_dir = recorded(tmp_path / "run", "epoch")
    (run_dir / "run.json").write_text('{"schema": "chopper.record/1", "command": 5}')
    run = open_run(str(run_dir))
    assert len(run.gpus) == 2
    assert any(path.endswith("run.json") for path, _ in run.failed)
