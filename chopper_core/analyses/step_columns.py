"""Columns of steps: their time, tokens, spread and compute by kind, of any rows of activities.

A row has a step time where its activities are whole steps of GPUs: those of GPUs, steps, nodes
and coordinates are. The compute of a row is divided by kind whatever the row is.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.base import PAIR, pair_codes
from chopper_core.analyses.step_parts import COMPUTE_PARTS, PARTS, part_column, part_of_rows
from chopper_core.analyses.step_times import NO_TOKENS, token_rate, tokens_in
from chopper_core.columns.metric import Scope, Values, absent, declare, numbered, worded
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.grouping import (
    combined,
    counts_of,
    distinct,
    first_equal,
    maxima_of,
    means_of,
    quantiles_of,
    run_maxima,
    run_minima,
    run_starts,
    sums_of,
)

CUT: Final = "the step is truncated by the profiling window, or missing on a GPU"
_PARTLY: Final = "the row isn't whole steps, or the trace has none"
STEADY: Final = "steady"


class StepCells(Struct, frozen=True, eq=False):
    """The pairs of a GPU and a step that rows of activities consist of, row by row."""

    run: Run
    cells: Groups
    owner: Index
    """The row of each."""
    count: int
    """How many rows there are."""
    gpu: Int64
    iteration: Int64
    is_all: Mask
    """Of each row, whether it is all activities of its pairs, also of what is in no step."""
    is_whole: Mask
    """Of each row, whether it is all activities of its steps, at least one."""

    @classmethod
    def of(cls, run: Run, nodes: Groups) -> StepCells:
        """Those of groups, without what runs outside of steps; of a run without any it is one."""
        cells, owner = nodes.split(PAIR)
        gpu, iteration = (cells.codes(level).astype(np.int64) for level in PAIR)
        whole = run.pairs
        sizes = whole.sizes()[first_equal(pair_codes(whole), pair_codes(cells))]
        lacks = sums_of((cells.sizes() < sizes).astype(np.int64), owner, len(nodes))
        labelled = counts_of(owner[iteration != NO_LABEL], len(nodes))
        is_all = np.equal(lacks, 0)
        is_whole = is_all & (labelled > 0)
        return cls(run, cells, owner, len(nodes), gpu, iteration, is_all, is_whole)

    @property
    def in_steps(self) -> Index:
        """The places of the pairs that are of a step; a run without steps is one."""
        return np.flatnonzero(_in_steps(self.run, self.iteration))

    def known(self, found: Values) -> Values:
        """A figure of whole steps, missing of other rows."""
        return Values(found.numbers, ~(found.present() & self.is_whole), words=found.words)

    def means(self, each: Float64) -> Float64:
        """The mean of a figure of the pairs by row; NaN where that of any is."""
        own = self.in_steps
        return means_of(each[own], self.owner[own], self.count)

    def step_ns(self) -> Float64:
        return self.means(self.cells.elapsed_ns.astype(np.float64))

    def tokens(self) -> Float64:
        """The tokens of a GPU and step, mean of each row; NaN where those of any are unknown."""
        gpus, iterations = distinct(self.gpu), distinct(self.iteration)
        every = tokens_in(self.run, gpus.tolist(), iterations.tolist())
        every[:, np.isin(iterations, [*self.run.cut_iterations])] = np.nan
        at = np.searchsorted(gpus, self.gpu), np.searchsorted(iterations, self.iteration)
        return self.means(every[at])

    def times(self) -> tuple[Float64, Index]:
        """Of rows of one step the time on each GPU, of others that of each step, mean of its GPUs;
        and the row of each."""
        own, took = self.in_steps, self.cells.elapsed_ns.astype(np.float64)
        row, took = self.owner[own], took[own]
        names, step = combined((row, self.iteration[own]))
        each = means_of(took, step)
        is_one = counts_of(names[:, 0], self.count) == 1
        of_gpus = is_one[row]
        of_steps = ~is_one[names[:, 0]]
        return (
            np.concatenate([took[of_gpus], each[of_steps]]),
            np.concatenate([row[of_gpus], names[of_steps, 0]]).astype(np.intp),
        )

    def spread_pct(self) -> Float64:
        times, row = self.times()
        order = np.lexsort((times, row))
        times, row = times[order], row[order]
        first, found = run_starts(row), np.full(self.count, np.nan)
        least, most = run_minima(times, first), run_maxima(times, first)
        found[row[first]] = 100.0 * (most - least) / np.maximum(least, 1)
        return found

    def slowest(self) -> Values:
        """The GPU with the longest mean step time of each row of several GPUs."""
        own = self.in_steps
        names, cell = combined((self.owner[own], self.gpu[own]))
        took = means_of(self.cells.elapsed_ns[own].astype(np.float64), cell)
        order = np.lexsort((names[:, 1], -took, names[:, 0]))
        first = order[run_starts(names[order, 0])]
        words: list[str | None] = [None] * self.count
        several = counts_of(names[:, 0], self.count) > 1
        for row, gpu in names[first].tolist():
            words[row] = f"GPU {gpu}" if several[row] else None
        return worded(words)

    def states(self) -> Values:
        """Whether the step of each row is steady; missing of rows of several steps."""
        own = self.in_steps
        names, _ = combined((self.owner[own], self.iteration[own]))
        words: list[str | None] = [None] * self.count
        is_one = counts_of(names[:, 0], self.count) == 1
        for row, iteration in names.tolist():
            words[row] = state_of(self.run, iteration) if is_one[row] else None
        return worded(words)

    def span_ns(self) -> Values:
        """First start to last end of each step, the largest of its GPUs; the median of the
        steps."""
        own = self.in_steps
        took = (self.cells.max("end_ns") - self.cells.min("start_ns"))[own]
        names, step = combined((self.owner[own], self.iteration[own]))
        longest = maxima_of(took, step, len(names))
        return numbered(quantiles_of(longest, names[:, 0], self.count, (0.5,))[:, 0])


def _in_steps(run: Run, iteration: Int64) -> Mask:
    has_steps = bool((run.pairs.codes("iteration") != NO_LABEL).any())
    return np.asarray((iteration != NO_LABEL) | (not has_steps), np.bool_)


def state_of(run: Run, iteration: int) -> str:
    if iteration not in run.cut_iterations:
        return STEADY
    return "warm-up" if iteration in run.warm_up else "cut"


def step_cells(scope: Scope) -> StepCells | None:
    """The steps of a scope's nodes, found once; None without a run."""
    nodes, run = scope.nodes, scope.run
    if run is None or not len(run.table):
        return None
    if "step cells" not in nodes.memo:
        nodes.memo["step cells"] = StepCells.of(run, nodes)
    found: StepCells = nodes.memo["step cells"]
    return found


def _figure(name: str, scope: Scope) -> Values:
    own = step_cells(scope)
    if own is None:
        return absent(len(scope.nodes))
    if name == "span_ns":
        return own.span_ns()
    if name == "iteration_ns":
        found = numbered(own.step_ns())
    elif name == "step_tokens":
        found = whole_numbers(own.tokens())
    elif name == "tokens_per_s":
        found = Values(token_rate(own.tokens(), own.step_ns()))
    elif name == "spread_pct":
        found = numbered(own.spread_pct())
    else:
        found = own.slowest() if name == "slowest" else own.states()
    return own.known(found)


def whole_numbers(numbers: Float64) -> Values:
    """Figures as integers where all that are known are; NaN is missing."""
    whole = np.nan_to_num(numbers).astype(np.int64)
    is_whole = np.array_equal(whole, np.nan_to_num(numbers))
    return Values(whole, np.isnan(numbers)) if is_whole else Values(numbers)


declare(
    f"""
    iteration_ns | ns | step | ratio of sums
        Time charged to a step of a GPU: its activities and the idle time before them, so that
        the steps of a GPU add up to its span. Mean over the complete steps and GPUs of
        the row: the step time.
        missing: {_PARTLY}, or {CUT}
    step_tokens | | step tokens | ratio of sums
        Tokens per GPU and step: given in the address, global_batch x sequence of the settings
        over the ranks, or from the trace's shapes. GPUs of one data-parallel replica (tensor,
        context and pipeline parallelism) share its tokens.
        missing: {_PARTLY}; or {NO_TOKENS}
        source: address, settings or trace
    tokens_per_s | tok/s | per GPU | ratio of sums
        Tokens per second and GPU: step_tokens / iteration_ns.
        missing: {_PARTLY}; {NO_TOKENS}; or {CUT}
        source: trace or address
    slowest | | slowest GPU | words
        The GPU of the row whose steps take longest.
        missing: the row is of one GPU, or isn't whole steps
    state | | state | words
        steady, warm-up: the first of a window, over 1.5 times as long as the others, or cut:
        truncated by the profiling window, or missing on a GPU.
        missing: the row isn't one whole step
    spread_pct | % | spread
        The longest minus the shortest time, in % of the shortest: of GPUs in a step, or of
        steady steps on a GPU.
        missing: {_PARTLY}
    span_ns | ns | span
        First start to last end of the row's activities in a step, the largest of its GPUs, and of
        several steps their median: the original's step time, without the idle time before the step
        and where steps overlap too long.
        missing: the row is outside steps
        source: UnaryLab/chopper lead_and_throughput.py (use_elapsed)
    """,
    _figure,
)


_PLACES: Final = {part_column(part): place for place, part in enumerate(COMPUTE_PARTS)}


def _part(name: str, scope: Scope) -> Values:
    """The compute of a part charged to each row, in ns."""
    nodes, run, size = scope.nodes, scope.run, len(PARTS)
    if run is None:
        return absent(len(nodes), 0)
    if "parts" not in nodes.memo:
        times = np.zeros(len(nodes) * size, np.int64)
        part_of = part_of_rows(run)
        for rows, node in nodes.pieces():
            computing = nodes.table.compute_ns[rows] + nodes.table.overlap_ns[rows]
            times += sums_of(computing, node.astype(np.int64) * size + part_of(rows), len(times))
        nodes.memo["parts"] = times.reshape(len(nodes), size)
    return Values(nodes.memo["parts"][:, _PLACES[name]])


declare(
    "\n".join(
        f"{part_column(part)} | ns | {part} | sum\n"
        f"Compute of the row that is {part}. Compute of forward, backward, prefill and decode is "
        "divided by the operation's name where it is known (q_ip, attn_fa, mlp_gs ...), else by "
        "the kernel's class; convolutions are with the GEMMs."
        for part in COMPUTE_PARTS
    ),
    _part,
)
