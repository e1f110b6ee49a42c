"""PyTorch's memory snapshots in JSON: what each allocation of the allocator's history was for.

`json.dump(torch.cuda.memory._snapshot(), file)` has the allocator's segments with their blocks, and
per device the history of allocations since it was recorded. Memory before the history follows from
the blocks: those that are still in use have the frames of their allocation, others have not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.inputs import Gpu, Source
from chopper_core.model.run import Run
from chopper_core.model.side_table import NEVER, MemoryEvents, side_tables
from chopper_core.model.table import NO_LABEL, Phase, empty_table
from chopper_core.model.training import UNKNOWN, FailedAllocations
from chopper_core.sources.ranks import rank_in_name
from chopper_core.sources.registry import Recognised
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.columns import MAX_BYTES, Interner, cut_name
from chopper_core.tables.losses import number_of
from chopper_core.tables.text import FileHead
from chopper_core.util.arrays import AnyArray
from chopper_core.util.errors import DataError
from chopper_core.util.patterns import late
from chopper_core.util.progress import Progress, silent

NAME: Final = "PyTorch memory snapshot"
FILES: Final = "[JSON of `torch.cuda.memory._snapshot()`](memory.md#memory-snapshots), of any ranks"
EXAMPLE: Final = 'json.dump(torch.cuda.memory._snapshot(), open(f"memory_rank{rank}.json", "w"))'
SUFFIXES: Final = (".json",)
_FORMAT: Final = "memory snapshot"
_CLOCK: Final = "the host's own"
_SEGMENT: Final = late(r'"(?:segments|segment_type)"\s*:')
_OF_SEGMENTS: Final = late(r'"(?:device_traces|total_size)"\s*:')
_MOST_BYTES: Final = 1 << 30
_LARGEST: Final = MAX_BYTES
_MOST_DEVICES: Final = 64
_NS_PER_US: Final = 1_000
_LATEST_US: Final = 1 << 52
NO_FRAME: Final = "no frame"
"""Of allocations that were recorded without frames."""


class _StackFrame(Struct):
    filename: str = ""
    line: int = 0
    name: str = ""


class _Block(Struct):
    size: int = 0
    requested_size: int = 0
    address: int = -1
    state: str = ""
    frames: msgspec.Raw = msgspec.Raw()
    history: list[Any] = []


class _Segment(Struct):
    device: int = 0
    address: int = -1
    total_size: int = 0
    blocks: list[_Block] = []


class _HistoryEntry(Struct):
    action: str = ""
    addr: int = -1
    size: int = 0
    time_us: int = 0
    device_free: int = UNKNOWN
    frames: msgspec.Raw = msgspec.Raw()


class _Snapshot(Struct):
    segments: list[_Segment] = []
    device_traces: list[list[_HistoryEntry]] = []


class _DeviceMemory(Struct):
    """What a snapshot says of a device."""

    device: int
    events: MemoryEvents
    failed: list[dict[str, int]]


class MemorySnapshot(Struct, frozen=True):
    """The snapshot of a process."""

    path: Path
    devices: Sequence[_DeviceMemory]
    actions: Counter[str]
    invalid: int

    def run_of(self, name: str, parts: Sequence[MemorySnapshot]) -> Run:
        return _run_of(name, parts)


def recognise(head: FileHead) -> Recognised | None:
    if not head.is_json or '"traceEvents"' in head.text:
        return None
    is_own = _SEGMENT.search(head.text) and _OF_SEGMENTS.search(head.text)
    return Recognised(_FORMAT) if is_own else None


def read(path: Path, progress: Progress = silent) -> MemorySnapshot:
    """Read the snapshot of a process; raises DataError without any memory of a device."""
    progress(f"read {path.name}", 0, 1)
    with ByteSource(path) as source:
        data = source.read_all(_MOST_BYTES)
    try:
        if data.lstrip().startswith(b"["):
            # Of older releases, `torch.cuda.memory_snapshot()` alone.
            snapshot = _Snapshot(msgspec.json.decode(data, type=list[_Segment]))
        else:
            snapshot = msgspec.json.decode(data, type=_Snapshot)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is a memory snapshot that can't be parsed: {error}.") from error
    frames = _Frames()
    actions = Counter(entry.action[:40] for trace in snapshot.device_traces for entry in trace)
    devices = (each.device + 1 for each in snapshot.segments)
    count = max(len(snapshot.device_traces), *devices, 0)
    if count > _MOST_DEVICES:
        raise DataError(f"{path} is a memory snapshot of {count:,} devices; none has so many.")
    found, invalid = [], 0
    for device in range(count):
        segments = [each for each in snapshot.segments if each.device == device]
        traces = snapshot.device_traces[device : device + 1]
        if segments or any(traces):
            memory = _DeviceReader(device, segments, traces[0] if traces else [], frames)
            invalid += memory.invalid
            if (read := memory.read()) is not None:
                found.append(read)
    progress(f"read {path.name}", 1, 1)
    if not found:
        raise DataError(f"{path} is a memory snapshot without any allocation.")
    for each in found:
        each.events = replace(each.events, names=tuple(frames.names))
    return MemorySnapshot(path, found, actions, invalid)


class _Frames:
    """The frames of allocations, each list of which is decoded once: code of its label, phase."""

    def __init__(self) -> None:
        self.names = Interner()
        self._known: dict[bytes, tuple[int, int]] = {}
        self._decoder = msgspec.json.Decoder(list[_StackFrame])

    def of(self, raw: msgspec.Raw) -> tuple[int, int]:
        text = bytes(raw)
        if text not in self._known:
            try:
                frames = self._decoder.decode(text) if text else []
            except msgspec.MsgspecError:
                frames = []
            self._known[text] = self.names[_label_of(frames)], _phase_of(frames)
        return self._known[text]


def _is_own(frame: _StackFrame) -> bool:
    """Whether a frame is of the user's Python, not of the framework or of C++."""
    path = frame.filename
    return path.endswith(".py") and "/torch/" not in path and "/site-packages/torch" not in path


def _label_of(frames: Sequence[_StackFrame]) -> str:
    """The innermost line of the user's own code, else of any Python."""
    python = [each for each in frames if each.filename.endswith(".py")]
    own = next((each for each in frames if _is_own(each)), python[0] if python else None)
    if own is None:
        return cut_name(frames[0].name) if frames and frames[0].name else NO_FRAME
    place = "/".join(own.filename.split("/")[-2:])
    return cut_name(f"{place}:{own.line} {own.name}")


def _phase_of(frames: Sequence[_StackFrame]) -> int:
    """The phase that frames show: a step of an optimizer, a call of a module, or the backward pass;
    the engine's own threads, on which most of that runs, have no frames of Python."""
    for each in frames:
        path = each.filename
        if "torch/utils/checkpoint" in path and each.name in ("recompute_fn", "unpack_hook"):
            return Phase.BACKWARD
        if "torch/autograd" in path and each.name in ("backward", "_engine_run_backward"):
            return Phase.BACKWARD
        if "torch/optim/" in path and "step" in each.name:
            return Phase.OPTIMIZER
    if any("torch/nn/modules/module" in each.filename for each in frames):
        return Phase.FORWARD
    return NO_LABEL


_RESERVES: Final = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_ALLOCATES: Final = {"alloc": 1, "free_completed": -1, "free": -1}


class _DeviceReader:
    """Makes events of the history of a device and of what it ended with."""

    def __init__(
        self,
        device: int,
        segments: Sequence[_Segment],
        trace: Sequence[_HistoryEntry],
        frames: _Frames,
    ) -> None:
        self._device, self._frames = device, frames
        self._trace = [each for each in trace if 0 <= each.size < _LARGEST]
        blocks = [each for segment in segments for each in segment.blocks]
        used = [each for each in blocks if each.state.startswith("active")]
        self._used = [each for each in used if 0 < _size(each) < _LARGEST]
        unused = [each.size for each in blocks if not each.state.startswith("active")]
        self._largest = max(unused, default=0) if blocks else UNKNOWN
        self._reserved = sum(each.total_size for each in segments)
        self.invalid = len(trace) - len(self._trace)

    def read(self) -> _DeviceMemory | None:
        """The events of the device; None without any."""
        own = [each for each in self._trace if each.action in _ALLOCATES]
        first_us = own[0].time_us if own else 0
        last = {each.addr: each.action for each in own}
        # What is in use at the end and isn't allocated in the history was so before it.
        before = [each for each in self._used if last.get(each.address) != "alloc"]
        rows = [(first_us, _size(each), each.address, each.frames) for each in before]
        rows += [
            (each.time_us, _ALLOCATES[each.action] * each.size, each.addr, each.frames)
            for each in own
        ]
        if not rows:
            return None
        sizes = np.array([row[1] for row in rows], np.int64)
        grown = np.cumsum(sizes)
        ends = sum(map(_size, self._used)) if self._used else max(int(grown[-1]), 0)
        base = max(ends - int(grown[-1]), -int(grown.min()), 0)
        allocated = base + grown
        reserved = self._reserved_after(len(before))
        labels = [self._frames.of(row[3]) for row in rows]
        times_us = np.array([min(max(row[0], 0), _LATEST_US) for row in rows], np.int64)
        count = len(rows)
        nowhere = np.full(count, NO_LABEL, np.int32)
        partner = _partners([row[2] for row in rows], sizes.tolist())
        # A release counts for what it releases.
        of = np.where((sizes < 0) & (partner >= 0), partner, np.arange(count))
        codes = np.array([each[0] for each in labels], np.int32)[of]
        phases = np.array([each[1] for each in labels], np.int32)[of]
        events = MemoryEvents(
            (),
            np.zeros(count, np.int32),
            np.maximum.accumulate(times_us) * _NS_PER_US,
            sizes,
            allocated,
            np.maximum(reserved, allocated) if self._reserved else reserved,
            partner,
            codes,
            nowhere,
            phases.astype(np.int8),
            nowhere,
            nowhere,
        )
        return _DeviceMemory(self._device, events, self._failed(allocated, reserved, len(before)))

    def _reserved_after(self, before: int) -> AnyArray:
        """What the allocator holds after each event: backward from what it ended with."""
        now, after = self._reserved, list[int]()
        for each in reversed(self._trace):
            if each.action in _RESERVES:
                now -= _RESERVES[each.action] * each.size
            elif each.action in _ALLOCATES:
                after.append(now)
        return np.maximum(np.array([now] * before + after[::-1], np.int64), 0)

    def _failed(self, allocated: AnyArray, reserved: AnyArray, before: int) -> list[dict[str, int]]:
        """The allocations that failed: the last one has the blocks of the snapshot."""
        found, at = [], before - 1
        own = [each for each in self._trace if each.action != "snapshot"]
        for each in own:
            at += each.action in _ALLOCATES
            if each.action != "oom":
                continue
            now = int(allocated[at]) if at >= 0 else UNKNOWN
            free = each.device_free
            found.append({
                "device": self._device,
                "asked_bytes": each.size,
                "capacity_bytes": UNKNOWN,
                "free_bytes": free if 0 <= free < _LARGEST else UNKNOWN,
                "allocated_bytes": now,
                "unallocated_bytes": max(int(reserved[at]) - now, 0) if at >= 0 else UNKNOWN,
                "largest_bytes": self._largest if each is own[-1] else UNKNOWN,
            })  # fmt: skip
        return found


def _size(block: _Block) -> int:
    """What was asked for, as the history has it; the allocator rounds it up."""
    return block.requested_size or block.size


def _partners(addresses: Sequence[int], sizes: Sequence[int]) -> AnyArray:
    partner = np.full(len(sizes), NEVER, np.int32)
    open_at: dict[int, int] = {}
    for place, (address, size) in enumerate(zip(addresses, sizes, strict=True)):
        if size > 0:
            open_at[address] = place
        elif (first := open_at.pop(address, None)) is not None and sizes[first] == -size:
            partner[place], partner[first] = first, place
    return partner


def _run_of(name: str, snapshots: Sequence[MemorySnapshot]) -> Run:
    ranks = [rank_in_name(each.path.name) for each in snapshots]
    is_named = None not in ranks and len(set(ranks)) == len(ranks)
    gpus: list[Gpu] = []
    tables: list[MemoryEvents] = []
    failed: list[dict[str, int]] = []
    sources: list[Source] = []
    first_ns = min(
        int(each.events.time_ns[0]) for snapshot in snapshots for each in snapshot.devices
    )
    for number, snapshot in enumerate(snapshots):
        rank = ranks[number] if is_named else number
        assert rank is not None
        for each in snapshot.devices:
            gpu = len(gpus)
            gpus.append(Gpu(gpu, rank, each.device, ""))
            events = each.events.from_gpu(gpu)
            tables.append(replace(events, time_ns=events.time_ns - first_ns))
            failed += [{"rank": rank, "attempt": 0, "step": UNKNOWN, **one} for one in each.failed]
        lost = f"{number_of(snapshot.invalid, 'entry')} of impossible sizes left out"
        sources.append(
            Source(
                path=str(snapshot.path),
                size_bytes=snapshot.path.stat().st_size,
                rank=rank,
                rank_from="file name" if is_named else "order",
                events={f"{action} entry": count for action, count in snapshot.actions.items()},
                unused={},
                findings={},
                losses=(lost,) if snapshot.invalid else (),
                clock=_CLOCK,
                facts={"format": _FORMAT},
            )
        )
    return Run(
        name=name,
        table=empty_table(),
        gpus=tuple(gpus),
        sources=tuple(sources),
        side_tables=side_tables(MemoryEvents.joined(tables), FailedAllocations.of(failed)),
    )
