"""Labels that contradict a kernel's or a range's own name, by a reading of names of its own.

Words are looked for as whole words, of plain, camel-case and snake-case names; the rules of the
alignment have their own tables.
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from chopper_core.model.run import Run
from chopper_core.model.table import Kind

_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
}
"""NCCL's SendRecv kernels run other collectives too: of all-to-all, in old versions of any."""
_OUTSIDE_LAYERS = ("ie", "ln", "lp", "cel", "dl", "opt_step", "opt_zg", "opt_gc", "opt_lr")
_BACKWARD = {"backward", "bwd", "wrw", "wgrad", "bprop"}
_FORWARD = {"forward", "fwd", "fprop"}


def words(name: str) -> set[str]:
    """The words of a name, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def of_kernels(run: Run) -> Iterator[str]:
    """One sentence per distinct contradiction between a kernel's name and its labels."""
    table = run.table
    said = set()
    columns = (table.kernel, table.phase, table.operation, table.kind, table.layer >= 0)
    for kernel, phase, operation, kind, layered in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        key = (kernel, phase, operation, kind, layered)
        if key in said:
            continue
        said.add(key)
        name = table.names[kernel]
        labels = (
            table.text_of("phase", phase),
            "" if operation < 0 else table.operations[operation],
            Kind(kind).name,
        )
        for reason in _against_kernel(name, *labels, layered):
            yield f"{name[:90]}: {reason}"


def _against_kernel(
    name: str, phase: str, operation: str, kind: str, layered: bool
) -> Iterator[str]:
    own = words(name)
    if own & _BACKWARD and phase not in ("backward", "none"):
        yield f"a backward kernel in {phase}"
    if "adam" in own and phase not in ("optimizer", "none"):
        yield f"an optimizer's kernel in {phase}"
    if own & {"nccl", "rccl"} and kind != "COMM":
        yield f"a kernel of NCCL is {kind}"
    plain = name.lower().replace("_", "")
    if plain.startswith(("nccldevkernel", "ncclkernel", "rccl")):
        for word, collective in _COLLECTIVES.items():
            if word in plain and operation != collective:
                yield f"a {word} is {operation}"
    elif kind == "COMM" and plain.startswith(("void at::native", "cijk", "triton")):
        yield "compute is communication"
    if name.startswith("Memcpy") and kind != "COPY":
        yield f"a copy is {kind}"
    if layered and operation.removesuffix(" (recompute)") in _OUTSIDE_LAYERS:
        yield f"{operation} lies in a layer"
    if words(operation) & _BACKWARD and phase in ("forward", "data", "prefill", "decode"):
        yield f"the operation {operation} is {phase}"


def of_ranges(run: Run, gpu: int, events: list[dict[str, Any]]) -> Iterator[str]:
    """Kernels launched inside an annotation that names a pass, with another phase.

    Ranges that name both passes, and recomputation in backward, contradict nothing.
    """
    ranges = defaultdict(list)
    calls: dict[int, tuple[Any, float]] = {}
    for event in events:
        category, args = event.get("cat"), event.get("args") or {}
        if category == "user_annotation" and event.get("ph") == "X":
            passes = words(event["name"])
            backward, forward = bool(passes & _BACKWARD), bool(passes & _FORWARD)
            if backward != forward:
                start = float(event["ts"])
                spans = ranges[event["pid"], event["tid"]]
                spans.append((start, start + float(event["dur"]), backward, event["name"]))
        elif category in ("cuda_runtime", "hip_runtime", "cuda_driver") and "correlation" in args:
            calls[int(args["correlation"])] = ((event["pid"], event["tid"]), float(event["ts"]))
    for spans in ranges.values():
        spans.sort()
    phases = _phases(run, gpu)
    said = set()
    for event in events:
        call = calls.get(int((event.get("args") or {}).get("correlation", -1)))
        if event.get("cat") != "kernel" or call is None:
            continue
        thread, at = call
        spans = ranges.get(thread, [])
        over = [each for each in spans[: bisect.bisect(spans, (at,))] if each[1] >= at]
        if not over:
            continue
        _, _, backward, name = min(over, key=lambda each: each[1] - each[0])
        phase = phases.get((event["name"], round(float(event["dur"]) * 1000)), {"none"})
        if not phase & ({"backward", "none"} if backward else {"forward", "backward", "none"}):
            said.add(f"{event['name'][:60]} in the range {name} is {', '.join(sorted(phase))}")
    yield from sorted(said)


def _phases(run: Run, gpu: int) -> dict[tuple[str, int], set[str]]:
    """The phases of a GPU's activities by kernel and duration."""
    table, found = run.table, defaultdict(set)
    for row in (table.gpu == gpu).nonzero()[0].tolist():
        key = (table.names[table.kernel[row]], int(table.duration_ns[row]))
        found[key].add(table.text_of("phase", int(table.phase[row])))
    return found
