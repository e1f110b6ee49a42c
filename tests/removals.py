"""Parts that traces may lack."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Events = list[dict[str, Any]]
Remove = Callable[[Events], Events]
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
SHAPES = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")


def without(*categories: str) -> Callable[[Events], Events]:
    return lambda events: [each for each in events if each.get("cat") not in categories]


def launches_and_kernels(events: Events) -> Events:
    kept = (*ON_GPU, "cuda_runtime", "ac2g", None)
    return [each for each in events if each.get("cat") in kept]


def kernels_alone(events: Events) -> Events:
    return [each for each in events if each.get("cat") in (*ON_GPU, None)]


def without_shapes(events: Events) -> Events:
    for each in events:
        for name in SHAPES:
            each.get("args", {}).pop(name, None)
    return events


REMOVALS: dict[str, Remove] = {
    "all of the host but launches": launches_and_kernels,
    "operators": without("cpu_op"),
    "annotations": without("user_annotation", "gpu_user_annotation"),
    "shapes": without_shapes,
    "launches": without("cuda_runtime"),
    "all but what GPUs run": kernels_alone,
    "flows": without("ac2g", "fwdbwd"),
}


def remove_from(folder: Path, removed: str) -> None:
    """Remove a part from the traces of a folder, which aren't packed."""
    for path in folder.glob("rank*.json"):
        document = json.loads(path.read_text())
        document["traceEvents"] = REMOVALS[removed](document["traceEvents"])
        path.write_text(json.dumps(document))
