"""Steps and their parts: what of their time is GEMM, attention, vector work, communication."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.base import base_of
from chopper_core.analyses.step_times import (
    NO_TOKENS,
    of_steps,
    ranks_of,
    replicas_of,
    tokens_in,
    whole_steps,
)
from chopper_core.columns import row_columns
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import Phase, Selection
from chopper_core.model.view import View
from chopper_core.util.arrays import AnyArray, Float64, Int64, Mask
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import ratios, sums_of
from chopper_core.util.patterns import late
from chopper_core.work.kernel_classes import ATTENTION_CLASS, OPTIMIZER_CLASS, classes_of_names

_BY_PHASE: Final = ("GEMM", "attention", "vector")
_PHASES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.PREFILL, Phase.DECODE)
"""The phases whose compute is divided further."""
IDLE: Final = "launch"
PARTS: Final = (
    *(f"{phase.name.lower()} {word}" for phase in _PHASES for word in _BY_PHASE),
    "optimizer",
    "sharding copies",
    "other compute",
    "communication",
    "copies",
    IDLE,
)
"""They add up to all time: compute by kind, then exposed communication and copies, then idle."""
_STATES: Final = {
    "communication": "exposed_comm_ns",
    "copies": "exposed_copy_ns",
    IDLE: "idle_ns",
}
"""The parts that are no compute → the column of each."""
COMPUTE_PARTS: Final = PARTS[: -len(_STATES)]
STEP_PART_ROWS: Final = "parts of a step"
row_columns(
    STEP_PART_ROWS,
    f"""
    part_ns | ns | time
        Mean time per GPU and steady step. Compute of forward, backward, prefill and decode is
        divided by the operation's name where it is known (q_ip, attn_fa, mlp_gs ...), else by the
        kernel's class; convolutions are with the GEMMs. Communication and copies are the exposed
        time; launch is idle time. The parts add up to the mean step.
    part_pct | % | of step
        part_ns in % of the mean time of a GPU in a steady step.
    per_token_ns | ns | per token
        part_ns / step_tokens: the time that a GPU takes for a token.
        missing: {NO_TOKENS}
        source: trace or address
""",
)
_OPERATIONS: Final = {
    "GEMM": late(r"^(?:(?:q|k|v|kv|qkv)_ip|attn_op|(?:mlp|ffn|fc)_(?:[gud]|gu)p|ln?p)$"),
    "attention": late(r"^attn_(?:fa|sdpa)$"),
    "vector": late(
        r"^(?:ie|ln|cel|ra|attn_(?:n|i|c|or|ra)|qkv_(?:s|t|re)|(?:mlp|ffn|fc)_(?:n|gs|gu|ra))$"
    ),
    "optimizer": late(r"^opt_|^Optimizer\."),
    "sharding copies": late(r"^(?:FSDP::|FullyShardedDataParallel\.)"),
}
"""The operations of each class. The rules are those of UnaryLab/chopper's annotations.py with the
operations' full names, since its own take every name that ends in `p` for a product.
"""
_RECOMPUTED: Final = " (recompute)"
_KERNELS: Final = {
    "gemm": "GEMM",
    "convolution": "GEMM",
    ATTENTION_CLASS: "attention",
    OPTIMIZER_CLASS: "optimizer",
}
_CLASSES: Final = tuple(_OPERATIONS)


def part_column(part: str) -> str:
    """The column of the time of a part."""
    return _STATES.get(part) or f"{part.replace(' ', '_').lower()}_ns"


def part_of_rows(run: Run) -> Callable[[Selection], Int64]:
    """From rows of a run's table to the place in `PARTS` of the compute of each."""
    found: Callable[[Selection], Int64] = run.memo(("parts of names",), lambda: _part_of(run))
    return found


@lru_cache(maxsize=1 << 12)
def operation_class(name: str) -> str:
    """The class of an operation of the vocabulary; empty for others, classed by their kernels."""
    name = name.removesuffix(_RECOMPUTED)
    return next((word for word, known in _OPERATIONS.items() if known.search(name)), "")


def _part_of(run: Run) -> Callable[[Selection], Int64]:
    """A function from rows to the part that each one's compute belongs to, as a place in
    `PARTS`."""
    table, places = run.table, {word: place for place, word in enumerate(_CLASSES)}
    # A missing label, -1, is the last place.
    words = [*map(operation_class, table.operations), ""]
    of_operation = np.array([places.get(word, -1) for word in words], np.int8)
    classes = [places[_KERNELS.get(each, "vector")] for each in classes_of_names(run)]
    of_kernel = np.array(classes, np.int8)
    part = np.full((len(_CLASSES), len(Phase) + 1), PARTS.index("other compute"), np.int64)
    for place, each in enumerate(_PHASES):
        part[: len(_BY_PHASE), each] = len(_BY_PHASE) * place + np.arange(len(_BY_PHASE))
    part[:, Phase.OPTIMIZER] = part[places["optimizer"]] = PARTS.index("optimizer")
    part[places["sharding copies"]] = PARTS.index("sharding copies")

    def found(rows: Selection) -> Int64:
        named = of_operation[table.operation[rows]]
        kind = np.where(named >= 0, named, of_kernel[table.kernel[rows]])
        return np.asarray(part[kind, table.phase[rows]])

    return found


def _parts_of_steps(run: Run, steps: Groups) -> Int64:
    """The time of each part of whole steps of GPUs."""
    table, part_of = run.table, part_of_rows(run)
    parts = np.zeros((len(steps), len(PARTS)), np.int64)
    for rows, step in steps.pieces():
        if not len(step):
            continue
        computing = table.compute_ns[rows] + table.overlap_ns[rows]
        # A piece is of few of the steps of thousands of GPUs.
        first, last = int(step.min()), int(step.max())
        own = parts[first : last + 1]
        owner = (step - first) * len(PARTS) + part_of(rows)
        own += sums_of(computing, owner, own.size).reshape(own.shape)
    for place, name in enumerate(_STATES.values(), len(COMPUTE_PARTS)):
        parts[:, place] = steps.sum(name)
    return parts


class StepParts(Struct, frozen=True, eq=False):
    """The steps of the scope on its GPUs."""

    gpus: list[int]
    iterations: list[int]
    parts_ns: Int64
    """GPUs x steps x parts."""
    span_ns: Int64
    """GPUs x steps."""
    there: Mask
    """Where a GPU has the step at all."""
    steady: Mask
    """Which steps are whole on all GPUs."""
    tokens: Float64
    """Per GPU and step, its part of those it shares; NaN where they aren't known."""
    replicas: float
    """Data-parallel replicas per GPU: less than one where GPUs share tokens."""
    ranks: int
    """The GPUs, with those of the job without a trace where all others are here."""

    @property
    def times_ns(self) -> Int64:
        return np.asarray(self.parts_ns.sum(axis=2), np.int64)

    @property
    def each_ns(self) -> Float64:
        """The step time of each step: its mean over the GPUs that have it."""
        return np.asarray(self.times_ns.sum(axis=0) / np.maximum(self.there.sum(axis=0), 1))

    @property
    def means_ns(self) -> Float64:
        """The mean of each part over the GPUs' steady steps; NaN without one."""
        chosen = self.parts_ns[:, self.steady]
        return ratios(chosen.sum(axis=(0, 1)), self.there[:, self.steady].sum())

    @property
    def used(self) -> list[int]:
        """The parts that take any time, as places in `PARTS`."""
        return np.flatnonzero(self.parts_ns.sum(axis=(0, 1))).tolist()

    @property
    def step_tokens(self) -> float:
        """The mean of the tokens of a steady step; NaN where they aren't known."""
        return float(self.tokens[:, self.steady].mean()) if self.steady.any() else float("nan")

    @property
    def step_ns(self) -> float:
        """The step time, as of `StepTimes`; NaN without a steady step."""
        return float(self.means_ns.sum())


def step_parts_of(run: Run, view: View, tokens: int | None = None) -> StepParts:
    """The labelled steps of the scope's GPUs, whole, whatever else the scope names."""
    key = ("steps", view.order, view.path, view.cut, tokens)
    return run.memo(key, lambda: _steps_of(run, view, tokens))


def _steps_of(run: Run, view: View, tokens: int | None) -> StepParts:
    steps, gpus, iterations = whole_steps(run, view)
    if not len(iterations):
        raise NothingToShow(
            "the scope has no steps; throughput needs a trace with steps "
            "(ProfilerStep# or Iteration annotations, or an optimizer)"
        )

    def laid_out(values: AnyArray, empty: float = 0) -> AnyArray:
        return of_steps(steps, gpus, iterations, values, empty)

    there = laid_out(np.ones(len(steps), np.bool_), False)
    known = tokens_in(run, gpus.tolist(), iterations.tolist(), tokens)
    # The tokens of a truncated step are unknown: only a query for the step shows its rate.
    base = base_of(run, view)
    own = of_steps(base.cells, gpus, iterations, base.counted, False)
    whole = np.asarray(own.any(axis=0), np.bool_)
    if not view.cut:
        whole &= ~np.isin(iterations, [*run.cut_iterations])
    parts = laid_out(_parts_of_steps(run, steps))
    return StepParts(
        gpus.tolist(),
        iterations.tolist(),
        parts,
        laid_out(steps.max("end_ns") - steps.min("start_ns")),
        there,
        whole,
        known,
        replicas_of(run),
        ranks_of(run, gpus.tolist()),
    )
