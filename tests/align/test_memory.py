"""GPU memory: events against a plain loop, the published figures of a real trace, the store."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.columns import METRICS, Scope
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.side_table import NEVER, MemoryEvents
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from tests.realdata.conftest import FOLDER as REAL_DATA
from tests.support import opened_events

QWEN = REAL_DATA / "mi300x_qwen05b.json.gz"
GPU_TYPE, CPU_TYPE = 6, 0


def event(cat: str, name: str, start: float, end: float, thread: int = 7, **args: Any) -> Any:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": start,
            "dur": end - start, "args": args}  # fmt: skip


def memory(at: float, size: int, address: int, thread: int = 7, **args: Any) -> Any:
    own = {"Bytes": size, "Addr": address, "Device Id": 0, "Device Type": GPU_TYPE, **args}
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1,
            "tid": thread, "ts": at, "args": own}  # fmt: skip


def made(seed: int = 3, kernels: int = 60) -> list[Any]:
    """Operators of two threads that allocate, launch and release."""
    random = np.random.default_rng(seed)
    found: list[Any] = []
    alive: dict[int, int] = {}
    allocated, reserved, now = 1000 * 512, 4000 * 512, 0.0
    for number in range(1, kernels + 1):
        thread = 7 if random.random() < 0.7 else 8
        found.append(event("cpu_op", f"aten::op{number % 4}", now, now + 50, thread))
        for _ in range(int(random.integers(0, 4))):
            size = int(random.integers(1, 40)) * 512
            if alive and random.random() < 0.45:
                address = list(alive)[int(random.integers(len(alive)))]
                size = -alive.pop(address)
            else:
                address = int(random.integers(1, 30)) * 4096
                if address in alive:
                    continue
                alive[address] = size
            allocated += size
            at = now + 1 + float(random.integers(0, 20))
            totals = {"Total Allocated": allocated, "Total Reserved": reserved}
            # Between operators too.
            found.append(memory(at if random.random() < 0.8 else now + 55, size, address, thread,
                                **totals))  # fmt: skip
            now += 25
            found[-1]["ts"] = now
        found.append(
            event("cuda_runtime", "hipLaunchKernel", now + 30, now + 35, thread, correlation=number)
        )
        found.append(
            event("kernel", "k", now + 40, now + 60, device=2, stream=0, correlation=number)
        )
        now += 70
    found.append(memory(now, 64, 5, **{"Device Type": CPU_TYPE, "Device Id": -1}))
    return found


def values(run: Run, name: str) -> float | None:
    """A metric of the whole run."""
    node = run.tree().node(())
    found = METRICS[name].compute(Scope(node, node, run.origin_ns)).at(0)
    return None if found is None else float(found)


def test_events_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    events = made()
    run = opened_events(tmp_path, events)
    own = [e for e in events if e["name"] == "[memory]" and e["args"]["Device Type"] == GPU_TYPE]
    found = run.side(MemoryEvents)
    assert len(found) == len(own) > 40
    assert np.array_equal(found.bytes, [each["args"]["Bytes"] for each in own])
    assert np.array_equal(found.allocated, [each["args"]["Total Allocated"] for each in own])
    open_at: dict[int, int] = {}
    partner = [NEVER] * len(own)
    operators = []
    for place, each in enumerate(own):
        address = each["args"]["Addr"]
        if each["args"]["Bytes"] > 0:
            open_at[address] = place
        elif address in open_at:
            first = open_at.pop(address)
            partner[place], partner[first] = first, place
        over = [
            e["name"]
            for e in events
            if e.get("cat") == "cpu_op" and e["tid"] == each["tid"]
            and e["ts"] <= each["ts"] <= e["ts"] + e["dur"]
        ]  # fmt: skip
        operators.append(over[-1] if over else "")
    assert found.partner.tolist() == partner
    names = [*found.names, ""]
    assert [names[code] for code in found.operator.tolist()] == operators
    assert values(run, "alloc_bytes") == sum(max(e["args"]["Bytes"], 0) for e in own)
    assert values(run, "peak_bytes") == max(e["args"]["Total Allocated"] for e in own)
    apart = [e["args"]["Total Reserved"] - e["args"]["Total Allocated"] for e in own]
    assert values(run, "fragmentation_bytes") == max(apart)
    for at in (0, len(own) // 2, len(own) - 1):
        assert set(found.alive(at).tolist()) == open_like(own[: at + 1])


def open_like(events: list[Any]) -> set[int]:
    """The positions of the allocations that no later event releases."""
    found: dict[int, int] = {}
    for place, each in enumerate(events):
        if each["args"]["Bytes"] > 0:
            found[each["args"]["Addr"]] = place
        else:
            found.pop(each["args"]["Addr"], None)
    return set(found.values())


def test_each_allocation_counts_for_the_next_launch_of_its_thread(tmp_path: Path) -> None:
    events = made(seed=5)
    run = opened_events(tmp_path, events)
    launches = sorted(
        (e["ts"], e["tid"], e["args"]["correlation"]) for e in events
        if e.get("cat") == "cuda_runtime"
    )  # fmt: skip
    expected: dict[int, int] = defaultdict(int)
    for each in events:
        if each["name"] == "[memory]" and each["args"]["Bytes"] > 0:
            if each["args"]["Device Type"] == CPU_TYPE:
                continue
            own = [n for at, tid, n in launches if tid == each["tid"]]
            after = [n for at, tid, n in launches if tid == each["tid"] and at >= each["ts"]]
            expected[(after or own[-1:])[0]] += each["args"]["Bytes"]
    order = np.argsort(run.table.start_ns)
    got = run.table.measured["alloc_bytes"][order]
    assert got.tolist() == [float(expected[number]) for number in range(1, len(order) + 1)]


def test_memory_goes_through_the_store_and_through_joins(tmp_path: Path) -> None:
    run = opened_events(tmp_path, made())
    write_store(run, tmp_path / "store")
    stored = read_store(tmp_path / "store")
    assert tuple(stored.side(MemoryEvents).names) == tuple(run.side(MemoryEvents).names)
    for name, column in run.side(MemoryEvents).columns().items():
        assert np.array_equal(stored.side(MemoryEvents).columns()[name], column), name
    twice = MemoryEvents.joined([run.side(MemoryEvents), run.side(MemoryEvents).from_gpu(1)])
    assert len(twice) == 2 * len(run.side(MemoryEvents)) and set(twice.gpu.tolist()) == {0, 1}
    paired = np.flatnonzero(twice.partner != NEVER)
    assert np.array_equal(twice.partner[twice.partner[paired]], paired)
    assert np.array_equal(twice.gpu[twice.partner[paired]], twice.gpu[paired])
    assert stored.signal_names[-2:] == ("allocated_bytes", "reserved_bytes")
    curve = stored.signal("allocated_bytes").curves[0]
    own = stored.side(MemoryEvents)
    edges = own.time_ns[5:9].astype(np.float64)
    assert curve.means(edges).tolist() == own.allocated[5:8].tolist()


def test_a_trace_without_memory_events_stores_nothing_for_them(tmp_path: Path) -> None:
    run = opened_events(tmp_path, [e for e in made() if e["name"] != "[memory]"])
    write_store(run, tmp_path / "store")
    assert not len(run.side(MemoryEvents)) and "peak_bytes" not in run.table.measured
    assert not (tmp_path / "store" / "memory.arrow").exists()
    assert values(run, "peak_bytes") is None and values(run, "alloc_bytes") is None
    assert "allocated_bytes" not in run.signal_names
    assert not any("memory" in name and n for name, n in run.sources[0].findings.items())


def test_older_and_damaged_events(tmp_path: Path) -> None:
    """Without a category, without totals, of a device that isn't a GPU of the trace, odd values."""
    events = made(kernels=20)
    own = [e for e in events if e["name"] == "[memory]" and e["args"]["Device Type"] == GPU_TYPE]
    for each in own:
        del each["cat"], each["args"]["Total Allocated"], each["args"]["Total Reserved"]
    sizes = np.cumsum([e["args"]["Bytes"] for e in own])
    events += [
        memory(1e5, 512, 1, Bytes="many"),
        memory(1e5, 0, 1),
        {**memory(1e5, 512, 1), "ts": "late"},
        {**memory(1e5, 512, 1), "args": None},
    ]
    run = opened_events(tmp_path, events)
    assert len(run.side(MemoryEvents)) == len(own)
    assert np.array_equal(run.side(MemoryEvents).allocated, sizes - min(int(sizes.min()), 0))
    assert run.sources[0].findings["events without a usable time"] == 1
    strangers = [memory(1e5, 512, 1, **{"Device Id": 5})]
    other = opened_events(tmp_path, [*made(kernels=20), *strangers])
    unplaced = other.sources[0].findings["memory events of a device that isn't one of the GPUs"]
    assert unplaced == len(own) + 1


@pytest.mark.skipif(not QWEN.is_file(), reason=f"no real traces at {REAL_DATA}")
def test_the_memory_of_a_real_run() -> None:
    run = open_run(str(QWEN), jobs=1)
    found = run.side(MemoryEvents)
    assert len(found) == 2_588
    assert values(run, "peak_bytes") == found.allocated.max() == 2_219_047_936
    by_name = dict(zip(found.names, range(len(found.names)), strict=True))
    for name, growth, count, gained in (
        ("aten::empty", 15_240_146_944, 361, 361),
        ("aten::mm", -4_353_294_336, 192, 96),
    ):
        own = found.operator == by_name[name]
        assert (int(found.bytes[own].sum()), int(own.sum())) == (growth, count)
        assert int((found.bytes[own] > 0).sum()) == gained
    assert (np.diff(found.allocated) == found.bytes[1:]).all()
