"""PyTorch's memory snapshots in JSON: their history against a plain allocator, phases, failures."""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from chopper_core.analyses.memory import failed_allocations
from chopper_core.extensions.runs.figures import figures_of_run
from chopper_core.findings import checked
from chopper_core.ingest.discovery import find_runs
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.side_table import MemoryEvents
from chopper_core.render import as_text
from chopper_core.sources.registry import Family, family_of
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.util.errors import DataError, NothingToShow
from chopper_core.views.query import query
from tests.ingest.test_memory_of_jobs import NEW, titan
from tests.wording import Wording

BEGIN_US = 1_772_700_000_000_000
SITE = "/opt/python3.12/site-packages/torch"


def frame(filename: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


CALL = frame(f"{SITE}/nn/modules/module.py", 1751, "_call_impl")
STACKS = {
    "models/llama.py:12 forward": (
        "forward",
        [frame(f"{SITE}/nn/functional.py", 5, "linear"),
         frame("/home/u/models/llama.py", 12, "forward"), CALL,
         frame("/home/u/train.py", 3, "main")],
    ),
    "u/train.py:9 main": (
        "optimizer",
        [frame(f"{SITE}/optim/adamw.py", 5, "_init_group"),
         frame(f"{SITE}/optim/optimizer.py", 7, "step"), frame("/home/u/train.py", 9, "main")],
    ),
    "models/llama.py:40 block": (
        "backward",
        [frame("/home/u/models/llama.py", 40, "block"), CALL,
         frame(f"{SITE}/utils/checkpoint.py", 1, "recompute_fn")],
    ),
    "torch::autograd::Engine::evaluate": (
        "none", [frame("??", 0, "torch::autograd::Engine::evaluate")]
    ),
    "no frame": ("none", []),
}  # fmt: skip


class Allocator:
    """A plain allocator that keeps a history, as PyTorch's does."""

    def __init__(self, seed: int = 1) -> None:
        self.random = random.Random(seed)
        self.history: list[dict[str, Any]] = []
        self.alive: dict[int, tuple[int, str]] = {}
        self.truth: list[tuple[int, int, dict[int, tuple[int, str]]]] = []
        """After each alloc and free: what is allocated and reserved, and what is alive."""
        self.reserved, self.next = 0, 1 << 47

    def entry(self, action: str, address: int, size: int, label: str, **more: int) -> None:
        at = BEGIN_US + 10 * len(self.history)
        self.history.append({
            "action": action, "addr": address, "size": size, "stream": 0, "time_us": at,
            "frames": STACKS[label][1], "compile_context": None, **more,
        })  # fmt: skip

    def allocate(self, size: int, label: str) -> int:
        if size + sum(each for each, _ in self.alive.values()) > self.reserved:
            self.reserved += 4 * size
            self.entry("segment_alloc", self.next, 4 * size, label)
        self.next += 1 << 30
        self.alive[self.next] = size, label
        self.entry("alloc", self.next, size, label)
        self._note()
        return self.next

    def free(self, address: int) -> None:
        size, label = self.alive.pop(address)
        self.entry("free_requested", address, size, label)
        self.entry("free_completed", address, size, label)
        self._note()

    def _note(self) -> None:
        now = sum(size for size, _ in self.alive.values())
        self.truth.append((now, self.reserved, dict(self.alive)))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.alive and self.random.random() < 0.4:
                self.free(self.random.choice([*self.alive]))
            else:
                self.allocate(512 * self.random.randint(1, 99), self.random.choice([*STACKS]))

    def snapshot(self, last: int | None = None, *, unused: tuple[int, ...] = ()) -> dict[str, Any]:
        """What `_snapshot()` returns; `last`: the history is a ring of so many entries."""
        blocks = [
            {"address": address, "size": size + 100, "requested_size": size,
             "state": "active_allocated", "frames": STACKS[label][1]}
            for address, (size, label) in self.alive.items()
        ]  # fmt: skip
        blocks += [
            {"address": at, "size": size, "requested_size": 0, "state": "inactive", "frames": []}
            for at, size in enumerate(unused)
        ]
        segment = {"device": 0, "address": 1 << 47, "total_size": self.reserved,
                   "segment_type": "large", "stream": 0, "blocks": blocks}  # fmt: skip
        history = self.history if last is None else self.history[len(self.history) - last :]
        return {"segments": [segment], "device_traces": [history, []],
                "allocator_settings": {}, "external_annotations": []}  # fmt: skip


def written(path: Path, snapshot: Any) -> Path:
    text = json.dumps(snapshot).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    assert family_of(path) is Family.MEMORY
    return path


def held(run: Run, by: str = "") -> dict[str, int]:
    frame = query(run, parse(f"R?view=memory{by and f'&by={by}'}"))
    own = frame.values["held_bytes"]
    return {label: int(own.at(row) or 0) for row, label in enumerate(frame.labels)}


@pytest.mark.parametrize("last", [None, 150])
@pytest.mark.parametrize("name", ["memory_rank3.json", "memory_rank3.json.gz"])
def test_the_history_is_that_of_a_plain_allocator(
    tmp_path: Path, last: int | None, name: str
) -> None:
    """With the whole history, and with its end alone, whose earlier blocks may be released."""
    made = Allocator()
    made.run(250)
    run = open_run(str(written(tmp_path / name, made.snapshot(last))))
    assert run.is_snapshot and [gpu.rank for gpu in run.gpus] == [3]
    memory = run.side(MemoryEvents)
    kept = made.history if last is None else made.history[-last:]
    count = sum(each["action"] in ("alloc", "free_completed") for each in kept)
    truth = made.truth[-count:]
    assert memory.allocated[-count:].tolist() == [each[0] for each in truth]
    assert memory.reserved[-count:].tolist() == [each[1] for each in truth]
    assert (memory.time_ns[1:] >= memory.time_ns[:-1]).all() and memory.time_ns[0] == 0
    # What holds the peak, by line and by phase: blocks that the history begins with and releases
    # have no frames.
    most = max(range(len(truth)), key=lambda at: truth[at][0])
    begun = {each["addr"] for each in kept if each["action"] == "alloc"} | {*made.alive}
    lines: dict[str, int] = defaultdict(int)
    phases: dict[str, int] = defaultdict(int)
    for address, (size, label) in truth[most][2].items():
        lines[label if address in begun else "before the trace"] += size
        phases[STACKS[label][0] if address in begun else "before the trace"] += size
    of_line, of_phase = held(run), held(run, "phase")
    assert {key: size for key, size in of_line.items() if size} == lines
    assert {key: size for key, size in of_phase.items() if size} == phases
    write_store(run, tmp_path / "store")
    assert held(read_store(tmp_path / "store")) == of_line


def test_snapshots_of_several_ranks_are_one_run(tmp_path: Path, wording: Wording) -> None:
    for rank in range(3):
        made = Allocator(rank)
        made.run(20 + rank)
        written(tmp_path / f"memory_rank{rank}.json", made.snapshot())
    assert [each.name for each in find_runs([str(tmp_path)])] == [tmp_path.name]
    run = open_run(str(tmp_path), jobs=1)
    assert [gpu.rank for gpu in run.gpus] == [0, 1, 2]
    row = figures_of_run(run)
    assert row.figures["peak_bytes"] == run.side(MemoryEvents).allocated.max()
    assert row.status == "short" and "memory snapshots alone" in row.reason
    text = as_text(query(run, parse("R?view=memory&by=gpu")))
    wording.among(text, "peak of GPU")


def test_a_failed_allocation_and_its_free_pieces(tmp_path: Path, wording: Wording) -> None:
    """1 GiB fails while the allocator has 2 GiB in pieces of 64 MiB at most; with the job's log,
    which says when."""
    made = Allocator()
    made.allocate(1 << 30, "models/llama.py:12 forward")
    made.entry("oom", 0, 4608 << 20, "no frame", device_free=1 << 30)
    made.entry("snapshot", 0, 0, "no frame")
    pieces = (64 << 20,) * 48
    written(tmp_path / "memory_rank1.json", made.snapshot(unused=pieces))
    run = open_run(str(tmp_path), jobs=1)
    (case,) = failed_allocations(run)
    assert (case.asked_bytes, case.free_bytes) == (4608 << 20, 1 << 30)
    assert (case.allocated_bytes, case.unallocated_bytes) == (1 << 30, 3 << 30)
    assert case.largest_bytes == 64 << 20
    (rule, each), *_ = checked(run, parse("R")).placed[0][:1]
    assert rule.name == "out-of-memory"
    wording(each.detail, "forward 100.0 %", "models/llama.py:12 forward 100.0 %")
    (tmp_path / "train.log").write_text(titan(range(1, 6)) + f"[rank1]: {NEW}\n")
    run = open_run(str(tmp_path), jobs=1)
    (case,) = failed_allocations(run)
    assert (case.rank, case.step, case.largest_bytes) == (1, 5, 64 << 20)
    assert held(run) == {"models/llama.py:12 forward": 1 << 30}


def test_without_a_history_and_of_older_releases(tmp_path: Path) -> None:
    made = Allocator()
    made.run(30)
    now = sum(size for size, _ in made.alive.values())
    whole = made.snapshot(0)
    for snapshot in (whole, whole["segments"]):
        run = open_run(str(written(tmp_path / "memory.json", snapshot)))
        assert sum(held(run).values()) == now
    with pytest.raises(NothingToShow, match="a memory snapshot knows no layer; by=operator, phase"):
        query(run, parse("R?view=memory&by=layer"))
    with pytest.raises(NothingToShow, match="needs a trace, and this run has memory snapshots"):
        query(run, parse("R?view=kernels"))


def test_damaged_snapshots(tmp_path: Path, wording: Wording) -> None:
    made = Allocator()
    made.run(10)
    path = tmp_path / "memory.json"
    text = json.dumps(made.snapshot())
    path.write_text(text[: len(text) // 2])
    with pytest.raises(DataError, match="is a memory snapshot that can't be parsed: "):
        open_run(str(path))
    path.write_text(json.dumps({"segments": [], "device_traces": [[]]}))
    with pytest.raises(DataError, match="is a memory snapshot without any allocation"):
        open_run(str(path))
    far = made.snapshot()
    far["segments"][0]["device"] = 10**6
    path.write_text(json.dumps(far))
    with pytest.raises(DataError, match="is a memory snapshot of 1,000,001 devices"):
        open_run(str(path))
    # Sizes that no GPU has, frames that are none: the rest is read.
    odd = made.snapshot()
    odd["device_traces"][0] += [{"action": "alloc", "addr": 5, "size": 1 << 60, "frames": 7}]
    odd["device_traces"][0][0]["frames"] = {"a": 1}
    path.write_text(json.dumps(odd))
    run = open_run(str(path))
    (note,) = run.sources[0].losses
    wording(note, "1 entry")
