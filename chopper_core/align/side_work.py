"""Work beside the training steps, named by annotations and Python frames: evaluation, checkpoints,
logging. It is in a step where the step's annotation holds it, and else outside steps."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import numpy as np

from chopper_core.align.host import Host
from chopper_core.align.labels import Intervals
from chopper_core.sources.trace import HostCategory
from chopper_core.util.arrays import Int8, Int64
from chopper_core.util.grouping import isin
from chopper_core.util.patterns import late

SIDE_WORK: Final = ("evaluation", "checkpoint", "logging")
"""The names of such work; the first that matches counts."""
_FUNCTION: Final = late(r"\): (\w+)$")
"""The function of a Python frame, `train.py(88): evaluate`."""
_PATTERNS: Final = (
    re.compile(r"(?<![a-z])(?:run_|do_)?(?:evaluat(?:e|ion|ing)|validat(?:e|ion|ing)|eval)"
               r"(?:_(?:step|loop|epoch|model|one_epoch|metrics|dataset|run))?(?![a-z])", re.I),
    re.compile(r"(?<![a-z])(?:save_?)?(?:ckpt|checkpoint)(?:_save|_saving)?(?![a-z])"
               r"|(?<![a-z])save_(?:state|model|pretrained|weights)|torch[./]serialization\.py.*save"
               r"|\btorch\.save\b", re.I),
    re.compile(r"(?<![a-z])(?:logging|log_(?:metrics|step|stats|scalars?))(?![a-z])"
               r"|wandb|tensorboard|SummaryWriter", re.I),
)  # fmt: skip
_OTHERS: Final = late(
    r"recompute|checkpoint_?(?:wrapper|impl|activation)|activation_?(?:ckpt|checkpoint)"
    r"|torch[./]utils[./]checkpoint\.py|[./]_dynamo[./]"
)
"""Activation checkpointing, which saves no checkpoint, and frames that torch.compile evaluates."""
_MOSTLY: Final = 0.5
"""The part of a time that such a range fills at least, to name it."""


@lru_cache(maxsize=1 << 14)
def side_work_of(name: str) -> int:
    """The place in `SIDE_WORK` of the work that a range is; -1 for any other range."""
    if "::" in name or name.startswith("<"):
        return -1
    function = _FUNCTION.search(name)
    text = function[1] if function is not None else name
    if _OTHERS.search(name) or text == "checkpoint":
        return -1
    for place, pattern in enumerate(_PATTERNS):
        if pattern.search(text) or (place and function is not None and pattern.search(name)):
            return place
    return -1


def side_intervals(host: Host) -> Intervals:
    """The annotations and frames of such work, valued with their place in `SIDE_WORK`."""
    is_named = isin(host.ranges.category, (HostCategory.ANNOTATION, HostCategory.FRAME))
    rows = np.flatnonzero(is_named)
    places = host.by_name(side_work_of, rows)
    return host.intervals(rows[places >= 0], places[places >= 0])


def names_of_gaps(beside: Intervals, start_ns: Int64, end_ns: Int64) -> Int8:
    """What the host did for most of some times: a place in `SIDE_WORK`, or -1."""
    found = np.full(len(start_ns), -1, np.int8)
    for at, (since, until) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        shared = np.minimum(beside.end_ns, until) - np.maximum(beside.start_ns, since)
        fills = np.flatnonzero(shared >= _MOSTLY * (until - since))
        if len(fills):
            found[at] = beside.value[fills].min()
    return found
