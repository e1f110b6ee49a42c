"""The steps of inference engines: one batch each, prefill or decode, from the names of ranges."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.host import Host
from chopper_core.align.intervals import NOWHERE, Intervals, parents
from chopper_core.model.table import Phase
from chopper_core.util.arrays import Float64, Index

_VLLM: Final = re.compile(
    r"^execute_(?:(?P<tokens>\d+)_)?context_(?P<prefill>\d+)(?:\((?P<new>[^)]*)\))?"
    r"_generation_(?P<decode>\d+)(?:\((?P<old>[^)]*)\))?$"
)
"""vLLM: requests that are prefilled and requests that generate, with their tokens."""
_VLLM_SHORT: Final = re.compile(r"^execute_new_(?P<prefill>\d+)_cached_(?P<decode>\d+)$")
"""vLLM: new and running requests; running ones may still be prefilled, so no phase is certain."""
_SGLANG: Final = re.compile(
    r"^step\[(?P<mode>\w+)(?: bs=(?P<requests>\d+))?(?: toks=(?P<tokens>\d+))?[^\]]*\]$"
)
_TENSORRT: Final = re.compile(
    r"^\[Executor\] _forward_step \d+: (?P<prefill>\d+) ctx reqs, (?P<tokens>\d+) ctx tokens, "
    r"(?P<decode>\d+) gen reqs"
)
_SGLANG_PHASES: Final = {
    "EXTEND": Phase.PREFILL,
    "SPLIT_PREFILL": Phase.PREFILL,
    "DECODE": Phase.DECODE,
    "TARGET_VERIFY": Phase.DECODE,
}
"""Batches of one phase; MIXED ones hold both, DRAFT_EXTEND and IDLE neither."""
_NAMED: Final = re.compile(r"^(?P<phase>prefill|decode)(?:[ _#-]?(?:step|batch))?[ _#-]?\d*$", re.I)
"""Ranges that name a phase and nothing else, as users write them."""


class Batch(Struct, frozen=True):
    """The batch that a range runs, by its name."""

    phase: Phase | None = None
    """None for a batch of both phases, or of an unknown one."""
    requests: int | None = None
    tokens: int | None = None
    """Tokens that enter the model; one per request in decoding."""
    is_step: bool = True
    """Whether the range is a step, and not a part of one."""


def batch_of(name: str) -> Batch | None:
    """The batch that a range's name describes; None for a name of another kind."""
    if match := _VLLM.match(name) or _TENSORRT.match(name):
        new, old = int(match["prefill"]), int(match["decode"])
        both = new > 0 and old > 0
        phase = None if both or not new + old else Phase.PREFILL if new else Phase.DECODE
        return Batch(phase, new + old, _tokens(match, old))
    if match := _VLLM_SHORT.match(name):
        return Batch(None, int(match["prefill"]) + int(match["decode"]))
    if match := _SGLANG.match(name):
        phase = _SGLANG_PHASES.get(match["mode"])
        requests = _number(match["requests"])
        tokens = _number(match["tokens"])
        if tokens is None and match["mode"] == "DECODE":
            tokens = requests
        return Batch(phase, requests, tokens)
    if match := _NAMED.match(name):
        return Batch(Phase[match["phase"].upper()], is_step=False)
    return None


def _tokens(match: re.Match[str], generating: int) -> int | None:
    groups = match.groupdict()
    if "new" not in groups:
        return int(match["tokens"]) + generating
    if groups["tokens"] is not None:
        return int(match["tokens"])
    parts = [_leading(groups[side]) for side in ("new", "old")]
    return sum(part for part in parts if part is not None) if None not in parts else None


def _leading(text: str | None) -> int | None:
    """The tokens in `512` or `sq512sk4096`."""
    match = re.match(r"(?:sq)?(\d+)", text or "")
    return int(match[1]) if match else None


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


class InferenceSteps(Struct, frozen=True):
    """The steps of an inference run on the host, in order of time."""

    steps: Intervals
    """The outermost ranges of steps, valued with their number."""
    phases: Intervals
    """All ranges of a batch, valued with its phase, NOWHERE where it has none."""
    tokens: Float64
    """Of each step; NaN where unknown."""
    requests: Float64
    """Of each step; NaN where unknown."""


def read_inference(host: Host) -> InferenceSteps:
    """The inference steps of a trace; none in other traces."""
    rows = host.annotations
    rows = rows[host.by_name(lambda name: batch_of(name) is not None, rows) > 0]
    rows = rows[np.argsort(host.ranges.start_ns[rows], kind="stable")]
    batches = [batch_of(host.text(row)) or Batch() for row in rows]
    phase = np.array(
        [NOWHERE if batch.phase is None else batch.phase for batch in batches], np.intp
    )
    is_step = np.array([batch.is_step for batch in batches], np.bool_)
    outer = rows[is_step]
    around = parents(host.intervals(outer))
    top = around == NOWHERE
    chosen = [batch for batch, step in zip(batches, is_step, strict=True) if step]
    step_of = _outermost(around)
    return InferenceSteps(
        steps=host.intervals(outer[top], np.arange(int(top.sum()))),
        phases=host.intervals(rows, phase),
        tokens=_largest([batch.tokens for batch in chosen], step_of),
        requests=_largest([batch.requests for batch in chosen], step_of),
    )


def _outermost(around: Index) -> Index:
    """For each range the number of the outermost one that holds it, counted in their order."""
    number = np.cumsum(around == NOWHERE) - 1
    top = np.arange(len(around))
    while len(top) and (inner := around[top] != NOWHERE).any():
        top = np.where(inner, around[top], top)
    return number[top]


def _largest(values: list[int | None], step: Index) -> Float64:
    """The largest known value of the ranges of each step; a batch is said once or more."""
    found = np.full(int(step.max(initial=-1)) + 1, np.nan)
    known = np.array([np.nan if value is None else value for value in values], np.float64)
    np.fmax.at(found, step, known)
    return found
