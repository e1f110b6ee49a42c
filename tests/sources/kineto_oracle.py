"""What a trace says, read the slow and obvious way: the whole text by `json`, times as Decimal."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from decimal import Decimal
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import astuple

from chopper_core.model.traffic import traffic_of
from chopper_core.sources.trace import Collective, Trace
from chopper_core.tables.losses import ABSENT

KERNELS = {"kernel": 0, "Kernel": 0, "gpu_memcpy": 1, "Memcpy": 1, "gpu_memset": 2, "Memset": 2}
LAUNCHES = (
    "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "xpu_driver",
    "privateuse1_runtime", "Runtime",
)  # fmt: skip
RANGES = {"cpu_op": 0, "Operator": 0, "user_annotation": 1}
FORWARD_BACKWARD = ("fwdbwd", "fwd_bwd", "forward_backward")
HOST_DEVICE = ("ac2g", "async_gpu", "async_cpu_to_gpu")


def tables_of(trace: Trace) -> dict[str, Any]:
    """The rows of a trace with every code looked up."""
    names, threads = trace.names, trace.threads
    work, calls, spans, flows = trace.activities, trace.launches, trace.ranges, trace.flows
    memory = trace.allocations

    def texts(code: int) -> tuple[str, ...] | None:
        return None if code == ABSENT else astuple(trace.inputs[code])

    def collective(code: int) -> tuple[Any, ...] | None:
        return None if code == ABSENT else astuple(trace.collectives[code])

    return {
        "activities": [
            (names[name], *row, collective(code), rank, astuple(trace.launch_shapes[shape]))
            for name, *row, code, rank, shape in rows(
                work.name,
                work.category,
                work.device,
                work.stream,
                work.start_ns,
                work.duration_ns,
                work.correlation,
                work.external_id,
                work.bytes,
                work.collective,
                work.rank,
                work.launch_shape,
            )
        ],
        "launches": [
            (names[name], threads[thread], *row)
            for name, thread, *row in rows(
                calls.name,
                calls.thread,
                calls.start_ns,
                calls.duration_ns,
                calls.correlation,
            )
        ],
        "ranges": [
            (
                names[name],
                category,
                threads[thread],
                *row,
                texts(inputs),
                collective(code),
            )
            for name, category, thread, *row, inputs, code in rows(
                spans.name,
                spans.category,
                spans.thread,
                spans.start_ns,
                spans.duration_ns,
                spans.external_id,
                spans.sequence,
                spans.forward_thread,
                spans.inputs,
                spans.collective,
            )
        ],
        "flows": [
            (number, is_start, threads[thread], time)
            for number, is_start, thread, time in rows(
                flows.id, flows.is_start, flows.thread, flows.time_ns
            )
        ],
        "allocations": [
            (device, threads[thread], *row)
            for device, thread, *row in rows(
                memory.device,
                memory.thread,
                memory.time_ns,
                memory.bytes,
                memory.address,
                memory.allocated,
                memory.reserved,
            )
        ],
        "event_counts": dict(trace.event_counts),
        "unused_events": dict(trace.unused_events),
        "one_ended_flows": dict(trace.one_ended_flows),
        "bad_times": trace.losses.bad_times,
    }


PRODUCTS = [
    f"aten::{name}"
    for name in (
        *("linear", "matmul", "mm", "addmm", "_scaled_mm", "_int_mm", "bmm", "baddbmm"),
        *("_grouped_mm", "_scaled_grouped_mm"),
    )
]


def rows(*columns: np.ndarray) -> list[tuple[Any, ...]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


def expected_tables(text: bytes) -> dict[str, Any]:
    """The same, from the text of a trace that is valid JSON."""
    document = json.loads(text.decode(), parse_float=Decimal)
    events = document if isinstance(document, list) else document["traceEvents"]
    base = 0 if isinstance(document, list) else int(document.get("baseTimeNanoseconds", 0))
    return expected_rows(events, base)


def expected_rows(events: list[dict[str, Any]], base: int = 0) -> dict[str, Any]:
    activities, launches, operators, frames, flows, memory = [], [], [], [], [], []
    used: Counter[str] = Counter()
    flow_ids: dict[str, dict[str, set[int]]] = {
        kind: {"s": set(), "f": set()} for kind in ("ac2g", "fwdbwd")
    }
    bad_times = 0
    for event in events:
        category, phase = event.get("cat", ""), event.get("ph", "")
        name, args = event.get("name", ""), event.get("args") or {}
        rank = integer(args.get("rank"))
        thread = (event.get("pid", ABSENT), event.get("tid", ABSENT), rank)
        kind = RANGES.get(category)
        if category == "Operator" and is_named_range(name, args):
            kind = 1
        if category == "python_function":
            kind = frame_kind(name, event.get("dur"))
            name = re.sub(r" object at 0x[0-9a-fA-F]+", "", name)
        if category in (*HOST_DEVICE, *FORWARD_BACKWARD) and phase in ("s", "f"):
            flow = "ac2g" if category in HOST_DEVICE else "fwdbwd"
            flow_ids[flow][phase].add(integer(event.get("id")))
            if flow == "fwdbwd":
                start = nanoseconds(event.get("ts"))
                if start is None:
                    bad_times += 1
                    continue
                flows.append((integer(event.get("id")), phase == "s", thread, start + base))
                used[category] += 1
            continue
        if name == "[memory]" and category in ("", "cpu_instant_event"):
            size, kind_of_device = args.get("Bytes", 0), args.get("Device Type", 0)
            if kind_of_device and size:
                start = nanoseconds(event.get("ts"))
                if start is None:
                    bad_times += 1
                    continue
                figures = ("Bytes", "Addr", "Total Allocated", "Total Reserved")
                memory.append(
                    (
                        args.get("Device Id", ABSENT),
                        thread,
                        start + base,
                        *(integer(args.get(key)) for key in figures),
                    )
                )
                used[category] += 1
            continue
        in_a_table = category in KERNELS or category in LAUNCHES or kind is not None
        if phase != "X" or not in_a_table:
            continue
        start, duration = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
        if start is None or duration is None or duration < 0:
            bad_times += 1
            continue
        used[category] += 1
        external = integer(args.get("External id", args.get("external id")))
        correlation = integer(args.get("correlation"))
        times = (start + base, duration)
        if category in KERNELS:
            device = integer(args.get("device", event.get("pid")))
            activities.append(
                (
                    name,
                    KERNELS[category],
                    device if 0 <= device < 2**31 else ABSENT,
                    integer(args.get("stream", event.get("tid"))),
                    *times,
                    correlation,
                    external,
                    integer(args.get("bytes")),
                    collective_of(args),
                    rank,
                    tuple(
                        (prod(map(int, args[key])) or ABSENT) if key in args else ABSENT
                        for key in ("grid", "block")
                    ),
                )
            )
        elif category in LAUNCHES:
            launches.append((name, thread, *times, correlation))
        else:
            (frames if category == "python_function" else operators).append(
                (
                    name,
                    kind,
                    thread,
                    *times,
                    external,
                    integer(args.get("Sequence number")),
                    integer(args.get("Fwd thread id")),
                    inputs_of(name, args),
                    collective_of(args),
                )
            )
    counts = Counter(event.get("cat", "") for event in events)
    return {
        "activities": activities,
        "launches": launches,
        "ranges": operators + frames,
        "flows": flows,
        "allocations": memory,
        "event_counts": dict(counts),
        "unused_events": {
            category: count - used[category]
            for category, count in counts.items()
            if count > used[category]
        },
        "one_ended_flows": {kind: len(ids["s"] ^ ids["f"]) for kind, ids in flow_ids.items()},
        "bad_times": bad_times,
    }


def is_named_range(name: str, args: dict[str, Any]) -> bool:
    if name.startswith(("ProfilerStep#", "Optimizer.", "enumerate(", "nccl:")):
        return True
    is_node = name.rstrip("0123456789").endswith("Backward")
    return "::" not in name and not is_node and args.get("Sequence number", -1) == -1


def frame_kind(name: str, took_us: Any) -> int | None:
    if name.startswith("nn.Module: "):
        return 2
    file, _, function = name.rpartition(": ")
    recomputes = function in ("recompute_fn", "backward") and "checkpoint.py(" in file
    if recomputes:
        return 3
    return 4 if isinstance(took_us, int | float | Decimal) and took_us >= 100 else None


def nanoseconds(value: Any) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    exact = Decimal(value)
    return round(exact * 1000) if abs(exact) < 2**52 else None


def integer(value: Any) -> int:
    if isinstance(value, str):
        return int(value, 16) if value.startswith("0x") else int(value)
    return ABSENT if value is None else int(value)


def collective_of(args: dict[str, Any]) -> tuple[Any, ...] | None:
    if "Collective name" not in args:
        return None
    return astuple(
        Collective(
            name=args["Collective name"],
            in_elements=args.get("In msg nelems", ABSENT),
            out_elements=args.get("Out msg nelems", ABSENT),
            dtype=args.get("dtype", ""),
            group_size=args.get("Group size", ABSENT),
            group_name=args.get("Process Group Name", ""),
            group_description=args.get("Process Group Description", ""),
            group_ranks=args.get("Process Group Ranks", ""),
        )
    )


def inputs_of(name: str, args: dict[str, Any]) -> tuple[str, ...] | None:
    """The texts of an operator's inputs that are kept: all of those whose work is modelled."""
    own = name.lower()
    words = ("matmul", "linear", "attention", "attn", "mha_", "conv", "embedding", "mm_", "mm.")
    moves = traffic_of(name) is not None
    wanted = moves or own.endswith("mm") or own.startswith("triton_")
    wanted = wanted or any(word in own for word in words)
    works = (
        moves
        or name in PRODUCTS
        or own.startswith("triton_")
        or any(word in own for word in ("attention", "attn", "mha_", "conv"))
    )
    given = {
        key: json.dumps(args[key], separators=(",", ":")).replace(" ", "") if key in args else ""
        for key in ("Input Dims", "Input type", "Concrete Inputs", "Input Strides")
    }
    if not wanted or not given["Input Dims"]:
        return None
    return tuple(given.values()) if works else (given["Input Dims"], "", "", "")


def text_of(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
