"""Mixtures of experts: tokens by expert and rank, their imbalance, and what balancing would bring.

Tokens are those that a job's log lists, or that ranges of a trace have in their names. What ranks
exchange in all-to-alls, in bytes, stands for tokens where nothing lists them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.asked import Steady, answer_of, change_of
from chopper_core.columns import row_columns
from chopper_core.columns.filter import only
from chopper_core.model.experts import ExpertTokens, counts_in
from chopper_core.model.run import Run
from chopper_core.model.table import Kind
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Int64, Mask, Rows
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import combined, distinct, isin, ranked, ratios, sums_of

_OF_EXPERTS: Final = re.compile(
    r"expert|(?<![a-z])moe(?![a-z])|grouped_?(?:gemm|mm|mlp)|group_gemm", re.IGNORECASE
)
_WORDS: Final = ("expert", "moe", "group")
"""One of them is in each text that matches."""
_EXCHANGE: Final = re.compile(r"all_?to_?all", re.IGNORECASE)
EXPERT_ROWS: Final = "experts, or ranks and layers with experts"
row_columns(
    EXPERT_ROWS,
    """
    expert_tokens | | tokens | sum
        Tokens per step: of all layers, and of all ranks that list them.
        missing: nothing lists tokens
    exchanged_bytes | B | exchanged | sum
        Bytes that the rank moves in all-to-alls per step, which go with the tokens of its experts.
        missing: the log or ranges list tokens
    load_share_pct | % | share | sum
        Share of all.
    over_mean_pct | % | vs mean | signed
        Beyond the mean of the rows.
    layer_imbalance | | busiest/mean
        The busiest expert, or rank, over the mean, in each step and layer.
        missing: there are fewer than two
    expert_ns | ns | expert compute
        Time of compute that is named as experts' is, per step.
        missing: no trace, or no compute of such a name
    """,
)
BY_LOG: Final = "the log's lists of tokens"
BY_RANGES: Final = "tokens in the names of ranges"
BY_BYTES: Final = "bytes of all-to-alls"


class ExpertLoads(Rows, frozen=True, eq=False):
    """How much each expert and rank got; a row per step, layer, rank and expert."""

    source: str
    """What says it."""
    step: Int64
    layer: Int64
    """-1 where it isn't known."""
    rank: Int64
    """-1 where it isn't known."""
    expert: Int64
    """-1 of what ranks exchange."""
    amount: Float64
    """Tokens, or bytes."""

    @property
    def is_tokens(self) -> bool:
        return self.source != BY_BYTES

    @property
    def steps(self) -> int:
        return len(distinct(self.step))

    def imbalance(self, codes: Int64) -> float:
        """The most loaded of some, such as experts, over their mean, in each step and layer, by
        what the layers' means weigh; NaN with fewer than two."""
        names, place = ranked(codes)
        if len(names) < 2:
            return float("nan")
        cells, cell = combined([self.step, self.layer])
        sums = sums_of(self.amount, cell * len(names) + place, len(cells) * len(names))
        sums = sums.reshape(len(cells), len(names))
        return float(ratios(sums.max(axis=1).sum(keepdims=True), sums.mean(axis=1).sum()).item())


def expert_loads(run: Run) -> ExpertLoads | None:
    """The loads of a run's experts by the best that it has; None without any."""
    return run.memo(("expert loads",), lambda: _of_log(run) or _of_ranges(run) or _of_bytes(run))


def _of_log(run: Run) -> ExpertLoads | None:
    rows = run.side(ExpertTokens)
    if not len(rows):
        return None
    # A step that is run again counts again.
    steps = combined([rows.attempt.astype(np.int64), rows.step])[1].astype(np.int64)
    layer, rank, expert = (each.astype(np.int64) for each in (rows.layer, rows.rank, rows.expert))
    return ExpertLoads(BY_LOG, steps, layer, rank, expert, rows.tokens)


def _of_ranges(run: Run) -> ExpertLoads | None:
    table = run.table
    listed: dict[int, tuple[int, list[float]]] = {}
    for code, name in enumerate(table.operations):
        if (counts := counts_in(name)) is not None:
            listed[code] = counts[1:]
    own = np.flatnonzero(np.isin(table.operation, [*listed]) & _is_counted(run))
    if not len(own):
        return None
    labels = [getattr(table, name)[own].astype(np.int64) for name in ("gpu", "iteration", "layer")]
    cells, _ = combined([*labels, table.operation[own].astype(np.int64)])
    rank_of = run.rank_of
    rows: list[tuple[int, int, int, int]] = []
    amounts: list[float] = []
    for gpu, step, layer, code in cells.tolist():
        named, tokens = listed[code]
        of = layer if layer >= 0 else named
        rows += [(step, of, rank_of[gpu], expert) for expert in range(len(tokens))]
        amounts += tokens
    steps, layers, ranks, experts = np.array(rows, np.int64).T
    return ExpertLoads(BY_RANGES, steps, layers, ranks, experts, np.array(amounts, np.float64))


def _of_bytes(run: Run) -> ExpertLoads | None:
    table = run.table
    exchange = [code for code, name in enumerate(table.operations) if _EXCHANGE.search(name)]
    own = np.flatnonzero(np.isin(table.operation, exchange) & (table.bytes >= 0) & _is_counted(run))
    if len(distinct(table.gpu[own])) < 2:
        return None
    ranks = np.array([run.rank_of[gpu.index] for gpu in run.gpus], np.int64)
    return ExpertLoads(
        BY_BYTES,
        table.iteration[own].astype(np.int64),
        table.layer[own].astype(np.int64),
        ranks[table.gpu[own]],
        np.full(len(own), -1, np.int64),
        table.bytes[own].astype(np.float64),
    )


def _is_counted(run: Run) -> Mask:
    """The activities of complete steps; of a run without any, all."""
    left_out = np.array(run.left_out(View(run.name)), np.int64)
    own: Mask = ~np.isin(run.table.iteration, left_out) & (run.table.iteration >= 0)
    return own if own.any() else np.ones(len(run.table), np.bool_)


class ExpertWork(Struct, frozen=True, eq=False):
    """The compute of experts in a trace."""

    question: str
    """What chooses it: `operation:experts`."""
    gpus: Int64
    each_ns: Float64
    """Per GPU and complete step."""

    @property
    def behind_ns(self) -> float:
        """What the busiest GPU computes longer than the mean."""
        return float(self.each_ns.max() - self.each_ns.mean())


def expert_work(run: Run) -> ExpertWork | None:
    """The compute of operations, else of kernels, that are named as experts' are; None without."""
    if not len(run.table) or run.is_sampled_only:
        return None
    return run.memo(("expert work",), lambda: _expert_work(run))


def _expert_work(run: Run) -> ExpertWork | None:
    table = run.table
    for level, codes, names in (
        ("operation", table.operation, table.operations),
        ("kernel", table.kernel, table.names),
    ):
        chosen = _of_experts(names)
        if not chosen:
            continue
        counted = (table.kind == Kind.COMPUTE) & _is_counted(run)
        own = np.flatnonzero(counted & isin(codes, chosen))
        gpus = distinct(table.gpu[own]).astype(np.int64)
        if len(gpus) < 2:
            continue
        steps = max(len(distinct(table.iteration[own])), 1)
        place = np.searchsorted(gpus, table.gpu[own])
        each = sums_of(table.duration_ns[own], place, len(gpus)) / steps
        used = [names[code] for code in distinct(codes[own]).tolist()]
        return ExpertWork(only(level, used), gpus, each)
    return None


def _of_experts(names: Sequence[str]) -> list[int]:
    """The codes of the names of experts' work."""
    # Of thousands of long names few have a word of the pattern.
    lowered = enumerate(map(str.lower, names))
    likely = [code for code, name in lowered if any(word in name for word in _WORDS)]
    return [code for code in likely if _OF_EXPERTS.search(names[code])]


def balanced_question(work: ExpertWork) -> str:
    """The question of `chopper what-if` that shares the experts' work evenly."""
    return f"{work.question} balanced"


def balancing_saves_ns(run: Run, work: ExpertWork) -> float | None:
    """By how much a step is shorter with balanced experts; None where nothing replays it."""
    try:
        steady = Steady.of(run, View(run.name))
        change = change_of(steady.predictor, balanced_question(work))
        return float(answer_of(steady, [change]).saving_ns)
    except (NothingToShow, UsageError):
        return None
