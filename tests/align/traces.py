"""Tiny Kineto traces, written event by event; times in whole µs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS, NO_LABEL, Category, KernelTable, Rule

MAIN, AUTOGRAD = 100, 101
GEMM = "Cijk_Ailk_Bljk_BBS_BH_MT256x256x64"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >()"
ADAM = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float> >()"
FLASH = "void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<int> >()"
RCCL = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
EVALUATE = "autograd::engine::evaluate_function: "

Event = dict[str, Any]


@dataclass
class TinyTrace:
    """The events of one rank; ids and correlations count up by themselves."""

    process: int | str = 100
    device: int = 0
    members: dict[str, Any] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    _external_ids: int = 0
    _correlations: int = 0
    _flows: int = 0

    def host(
        self, category: str, name: str, start: int, end: int, thread: int | str = MAIN, **args: Any
    ) -> Event:
        """A range on a host thread."""
        self._external_ids += 1
        event = {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": self.process,
            "tid": thread,
            "ts": start,
            "dur": end - start,
            "args": {"External id": self._external_ids, **args},
        }
        self.events.append(event)
        return event

    def op(self, name: str, start: int, end: int, thread: int | str = MAIN, **args: Any) -> Event:
        """A cpu_op."""
        return self.host("cpu_op", name, start, end, thread, **args)

    def note(self, name: str, start: int, end: int, thread: int | str = MAIN) -> Event:
        """A user_annotation."""
        return self.host("user_annotation", name, start, end, thread)

    def module(self, name: str, start: int, end: int) -> Event:
        """A frame of an nn.Module call."""
        return self.host("python_function", f"nn.Module: {name}", start, end)

    def call(
        self,
        name: str,
        at: int,
        correlation: int,
        thread: int | str = MAIN,
        external_id: int | None = None,
    ) -> Event:
        """A call of the runtime."""
        args = {"correlation": correlation}
        if external_id is not None:
            args["External id"] = external_id
        event = {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": name,
            "pid": self.process,
            "tid": thread,
            "ts": at,
            "dur": 2,
            "args": args,
        }
        self.events.append(event)
        return event

    def gpu(
        self,
        name: str,
        start: int,
        duration: int = 5,
        *,
        category: str = "kernel",
        stream: int = 0,
        device: int | None = None,
        correlation: int | None = 0,
        **args: Any,
    ) -> Event:
        """An activity of the GPU, without a launch call."""
        device = self.device if device is None else device
        numbers: dict[str, Any] = {"device": device, "stream": stream}
        if correlation is not None:
            numbers["correlation"] = correlation
        event = {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": device,
            "tid": stream,
            "ts": start,
            "dur": duration,
            "args": numbers | args,
        }
        self.events.append(event)
        return event

    def launch(
        self,
        name: str,
        at: int,
        *,
        thread: int | str = MAIN,
        start: int | None = None,
        duration: int = 5,
        external_id: int | None = None,
        **given: Any,
    ) -> Event:
        """An activity and the call that launched it; it starts 10 µs after the call."""
        self._correlations += 1
        self.call("hipLaunchKernel", at, self._correlations, thread, external_id)
        if external_id is not None:
            given["External id"] = external_id
        start = at + 10 if start is None else start
        return self.gpu(name, start, duration, correlation=self._correlations, **given)

    def flow(self, forward: Event, backward: Event, *, ends: str = "sf") -> None:
        """A fwdbwd flow between two cpu_ops, or only one end of it."""
        self._flows += 1
        for phase, op in (("s", forward), ("f", backward)):
            if phase in ends:
                event = {
                    "ph": phase,
                    "id": self._flows,
                    "cat": "fwdbwd",
                    "name": "fwdbwd",
                    "pid": op["pid"],
                    "tid": op["tid"],
                    "ts": op["ts"],
                }
                self.events.append(event | ({"bp": "e"} if phase == "f" else {}))

    def write(self, path: Path) -> Path:
        """The trace as a file."""
        document = {"schemaVersion": 1, **self.members, "traceEvents": self.events}
        path.write_text(json.dumps(document))
        return path

    def count(self) -> int:
        """Number of activities of the GPU."""
        return sum(event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset") for event in self.events)


@dataclass(frozen=True, slots=True)
class Labelled:
    """What became of one activity."""

    gpu: str
    iteration: str
    phase: str
    layer: str
    operation: str
    kernel: str
    rules: dict[str, Rule]


@dataclass(frozen=True, slots=True)
class Aligned:
    """A tiny trace, aligned; the activities in the order of their start."""

    run: Run
    activities: list[Labelled]
    rows: list[int]
    """Their rows; those of time outside steps have no activity."""

    @property
    def findings(self) -> dict[str, int]:
        (source,) = self.run.sources
        return dict(source.findings)

    def texts(self, level: str) -> list[str]:
        """The labels of a level, activity by activity."""
        return [getattr(each, level) for each in self.activities]


def align(trace: TinyTrace, folder: Path) -> Aligned:
    """Open a tiny trace: all its activities are there, and each nanosecond is accounted for."""
    run = open_run(str(trace.write(folder / "rank0.json")))
    table = run.table
    rows = np.flatnonzero(table.category != Category.OUTSIDE).tolist()
    assert len(rows) == trace.count()
    rows.sort(key=lambda row: (table.start_ns[row], table.stream[row], row))
    rules = [f"{level}_rule" for level in ("iteration", "phase", "layer", "operation")]
    activities = [
        Labelled(
            **{level: _text(table, level, int(table.column(level)[row])) for level in LEVELS},
            rules={rule: Rule(int(table.column(rule)[row])) for rule in rules},
        )
        for row in rows
    ]
    return Aligned(run, activities, rows)


def _text(table: KernelTable, level: str, code: int) -> str:
    """A label as the trace has it, not as a path spells it; `none` where there is none."""
    texts = {"operation": table.operations, "kernel": table.names}.get(level)
    return table.text_of(level, code) if texts is None or code == NO_LABEL else texts[code]
