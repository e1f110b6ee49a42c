"""A trace whose operators allocate GPU memory, and idle time between them, for tests of views."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run

STEPS = (4, 5, 6)
LAYERS = 2
SIZE = 1 << 20
WEIGHTS = 5 << 20
"""Allocated before the trace."""


def event(cat: str, name: str, start: float, end: float, **args: Any) -> Any:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 7, "ts": start,
            "dur": end - start, "args": args}  # fmt: skip


class Maker:
    """Writes events one after the other."""

    def __init__(self, rank: int) -> None:
        self.events: list[Any] = []
        self.now, self.number, self.rank = 1_000.0 + rank, 0, rank
        self.allocated, self.next_address = WEIGHTS, 1
        self.alive: dict[int, int] = {}

    def memory(self, size: int, address: int) -> None:
        self.allocated += size
        args = {"Bytes": size, "Addr": address, "Device Id": self.rank, "Device Type": 1,
                "Total Allocated": self.allocated, "Total Reserved": 64 << 20}  # fmt: skip
        self.events.append({"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",
                            "pid": 1, "tid": 7, "ts": self.now, "args": args})  # fmt: skip
        self.now += 1

    def allocate(self, size: int) -> int:
        address = self.next_address
        self.next_address += 1
        self.alive[address] = size
        self.memory(size, address)
        return address

    def release(self, address: int) -> None:
        self.memory(-self.alive.pop(address), address)

    def operator(self, name: str, size: int, took: float) -> int:
        """An operator that allocates its output and launches a kernel."""
        begin = self.now
        self.now += 3
        address = self.allocate(size)
        self.number += 1
        self.events.append(
            event("cuda_runtime", "cudaLaunchKernel", self.now, self.now + 4,
                  correlation=self.number)
        )  # fmt: skip
        self.events.append(
            event("kernel", f"{name}_kernel", self.now + 6, self.now + 6 + took, device=self.rank,
                  stream=7, correlation=self.number)
        )  # fmt: skip
        self.now += 5
        self.events.append(event("cpu_op", f"aten::{name}", begin, self.now))
        self.now += took
        return address

    def step(self, number: int) -> None:
        """Forward keeps activations, backward releases them."""
        begin, kept = self.now, []
        for layer in range(LAYERS):
            started = self.now
            for name, size in (("mlp_up", 4 * SIZE), ("mlp_gs", 2 * SIZE)):
                opened = self.now
                kept.append(self.operator(name, size + self.rank * SIZE, 30))
                self.events.append(event("user_annotation", name, opened, self.now))
            self.events.append(event("user_annotation", f"Layer{layer}", started, self.now))
        waited = self.now
        self.now += 80
        self.events.append(event("user_annotation", "enumerate(DataLoader)#X.__next__", waited,
                                 self.now))  # fmt: skip
        for address in reversed(kept):
            grad = self.operator("mm", SIZE, 40)
            self.release(address)
            self.release(grad)
        self.events.append(event("user_annotation", f"ProfilerStep#{number}", begin, self.now))
        self.now += 2


def events_of(rank: int) -> list[Any]:
    maker = Maker(rank)
    for number in STEPS:
        maker.step(number)
    return maker.events


@cache
def allocating_run() -> Run:
    """Two ranks that allocate; the second one more."""
    with TemporaryDirectory() as folder:
        for rank in range(2):
            document = {"traceEvents": events_of(rank), "distributedInfo": {"rank": rank}}
            (Path(folder) / f"rank{rank}.json").write_text(json.dumps(document))
        return open_run(folder, jobs=1)
