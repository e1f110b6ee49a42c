"""What the original Chopper's merge step makes of a trace, in plain Python.

Written from a description of what it does, not from its code. It knows no threads: a range, a
sequence number or a time is the same on all of them. Where the original stops with an assertion,
the item is skipped here and counted.

Readings chosen where the description leaves room: of several labelled operators with one sequence
number an operator takes the label of the first one of its own side (backward operators are those
with a `Fwd thread id` above 0), and labels are handed on to operators of the same thread.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

Event = dict[str, Any]
Time = int | Decimal
Range = tuple[Time, Time, str]

_LAYER = re.compile(r"Layer(\d+)")
_ITERATION = re.compile(r"Iteration(\d+)")


@dataclass(frozen=True)
class Kernel:
    """A kernel with what the original says of it; None where it says nothing."""

    event: Event
    iteration: int | None
    layer: int | None
    operator: str | None

    @property
    def phase(self) -> str | None:
        """The `chunk` of the original's later steps."""
        if self.operator is None:
            return None
        if self.operator.startswith(("opt_", "Optimizer", "f_Optimizer")):
            return "optimizer"
        return "backward" if self.operator.startswith("b_") else "forward"

    @property
    def operation(self) -> str | None:
        """The operator's name after the original's corrections of names, without its prefix."""
        if self.operator is None:
            return None
        name = re.sub(r"^[fb]_", "", self.operator)
        if name.endswith("Optimizer.step#AdamW.step"):
            return "opt_step"
        return re.sub(r"^(?:fc|ffn)_", "mlp_", name)


@dataclass
class Merged:
    """The kernels of a rank, and how often the original would have stopped."""

    kernels: list[Kernel] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def merge(document: dict[str, Any]) -> Merged:
    """The labels of a rank's kernels."""
    events = document["traceEvents"]
    merged = Merged()
    ops = [event for event in events if event.get("cat") == "cpu_op"]
    layers, iterations, operators = _annotations(events)
    times = [op["ts"] for op in ops]
    layer_at = dict(zip(times, _at(times, layers), strict=True))
    iteration_at = dict(zip(times, _at(times, iterations), strict=True))
    operator_at = dict(zip(times, _at(times, operators), strict=True))

    names: dict[int, str] = {}
    of_layer: dict[int, str] = {}
    _link(events, ops, operator_at, layer_at, names, of_layer, merged.skipped)
    _promote(ops, names)
    _promote(ops, of_layer)
    _propagate(ops, names)
    _propagate(ops, of_layer)

    calls = {e["args"].get("correlation"): e for e in events if e.get("cat") == "cuda_runtime"}
    by_external_id = {op["args"]["External id"]: op for op in ops}
    for event in events:
        if event.get("cat") != "kernel":
            continue
        call = calls.get(event["args"].get("correlation"))
        op = by_external_id.get(call["args"].get("External id")) if call else None
        if op is None:
            merged.skipped["kernel without a launch" if call is None else "launch without op"] += 1
            continue
        layer = of_layer.get(id(op)) or layer_at[op["ts"]]
        iteration = iteration_at[op["ts"]]
        operator = names.get(id(op)) or operator_at[op["ts"]]
        if operator is None:
            merged.skipped["op without an annotation"] += 1
        merged.kernels.append(
            Kernel(
                event,
                iteration=None if iteration is None else int(iteration),
                layer=None if layer is None else int(layer),
                operator=operator,
            )
        )
    return merged


def _annotations(events: Iterable[Event]) -> tuple[list[Range], list[Range], list[Range]]:
    """The ranges of layers, iterations and operators."""
    layers, iterations, operators = [], [], []
    for event in events:
        if event.get("cat") != "user_annotation":
            continue
        start, end = event["ts"], event["ts"] + event["dur"]
        if layer := _LAYER.fullmatch(event["name"]):
            layers.append((start, end, layer[1]))
        elif iteration := _ITERATION.fullmatch(event["name"]):
            iterations.append((start, end, iteration[1]))
        else:
            operators.append((start, end, event["name"]))
    return layers, iterations, operators


def _at(times: Sequence[Time], ranges: Iterable[Range]) -> list[str | None]:
    """The label of the shortest range over each time; both ends belong to a range."""
    order = sorted(range(len(times)), key=lambda position: times[position])
    sorted_times = [times[position] for position in order]
    painted: list[str | None] = [None] * len(times)
    for start, end, label in sorted(ranges, key=lambda one: one[0] - one[1]):
        low, high = bisect_left(sorted_times, start), bisect_right(sorted_times, end)
        painted[low:high] = [label] * (high - low)
    found: list[str | None] = [None] * len(times)
    for position, innermost in zip(order, painted, strict=True):
        found[position] = innermost
    return found


def _link(
    events: Iterable[Event],
    ops: Iterable[Event],
    operator_at: dict[Time, str | None],
    layer_at: dict[Time, str | None],
    names: dict[int, str],
    of_layer: dict[int, str],
    skipped: Counter[str],
) -> None:
    """Forward operators and the backward ones that flows lead to take the forward's ranges."""
    ops_at = defaultdict(list)
    for op in ops:
        ops_at[op["ts"]].append(op)
    ends: dict[Any, dict[str, Time]] = defaultdict(dict)
    for event in events:
        if event.get("cat") == "fwdbwd":
            ends[event["id"]]["backward" if "bp" in event else "forward"] = event["ts"]
    for flow in ends.values():
        if len(flow) < 2 or not ops_at[flow["forward"]] or not ops_at[flow["backward"]]:
            skipped["flow with one end"] += 1
            continue
        name, layer = operator_at[flow["forward"]], layer_at[flow["forward"]]
        if name is None:
            skipped["op without an annotation"] += 1
        for side, prefix in (("forward", "f_"), ("backward", "b_")):
            for op in ops_at[flow[side]]:
                if name is not None:
                    names[id(op)] = prefix + name
                if layer is not None:
                    of_layer[id(op)] = layer


def _promote(ops: Iterable[Event], labels: dict[int, str]) -> None:
    """Operators with the sequence number of a labelled one take its label."""
    sources: dict[Any, list[tuple[bool, str]]] = defaultdict(list)
    for op in ops:
        if id(op) in labels and "Sequence number" in op["args"]:
            sources[op["args"]["Sequence number"]].append((_is_backward(op), labels[id(op)]))
    for op in ops:
        found = sources.get(op["args"].get("Sequence number"), [])
        if id(op) not in labels and found:
            own_side = [label for side, label in found if side == _is_backward(op)]
            labels[id(op)] = own_side[0] if own_side else found[0][1]


def _is_backward(op: Event) -> bool:
    return bool(op["args"].get("Fwd thread id", 0) > 0)


def _propagate(ops: Iterable[Event], labels: dict[int, str]) -> None:
    """Operators inside a labelled one take its label, that of the shortest one around them."""
    threads = defaultdict(list)
    for op in ops:
        threads[op["pid"], op["tid"]].append(op)
    for own in threads.values():
        ranges = [
            (op["ts"], op["ts"] + op["dur"], labels[id(op)]) for op in own if id(op) in labels
        ]
        rest = [op for op in own if id(op) not in labels]
        for op, label in zip(rest, _at([op["ts"] for op in rest], ranges), strict=True):
            if label is not None:
                labels[id(op)] = label
