"""Questions about steps without a cause, and their answers by replay."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.outliers import MAD_TO_SIGMA, MIN_VALUES, spread_of
from chopper_core.analyses.step_times import StepTimes, step_times
from chopper_core.columns import Values
from chopper_core.columns.filter import FilterRows, matching
from chopper_core.graph import questions, window
from chopper_core.graph.questions import LEAST, MOST, Change, Predicted, Predictor, student
from chopper_core.graph.step_graph import replay
from chopper_core.graph.window import ReplayedSteps
from chopper_core.model.parallel import DIMENSIONS
from chopper_core.model.phrases import listed
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS, SPLITS, Kind
from chopper_core.model.view import SEPARATOR, View
from chopper_core.util.arrays import Float64, Int64, Mask
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import (
    combined,
    distinct,
    isin,
    maxima_of,
    means_of,
    median_of,
    ranked,
    run_sizes,
    sums_of,
)

_FORMS: Final = (
    "as peers, balanced, x0.8, at peak, hidden, no contention, contention as peers, clock=2100"
)
_HELP: Final = (
    f"a question is a change ({_FORMS}), after what it changes in the filter language (gpu:5 "
    "layer:21 as peers, operation:mlp_dp x0.8, host x0, launch x0, memory x0.9, comm hidden, "
    "stages balanced); or no stragglers, no host gaps"
)
SHORT: Final = {"no stragglers": "as peers", "no host gaps": "host x0"}
_CHANGE: Final = re.compile(
    r"(?:(?P<of>.*?)\s+)?(?P<change>as peers|balanced|at peak|hidden|no contention"
    r"|contention as peers|[x×](?P<factor>\d+(?:\.\d+)?)"
    r"|clock[=:](?P<mhz>\d+(?:\.\d+)?)(?:\s?mhz)?)",
    re.IGNORECASE,
)
_TERM: Final = re.compile(
    r"(?P<not>!?)(?P<level>[a-z_%\d]+)(?:[:=]|(?P<differs>!=))(?P<value>.+)", re.IGNORECASE
)
_ALIASES: Final = {"stage": "pp"}
_KINDS: Final = {"compute": Kind.COMPUTE, "comm": Kind.COMM, "copy": Kind.COPY}
_OF_KERNELS: Final = ("kernel", "class")
"""Levels that kernels have wherever they are, as their peers do."""
HOST: Final = "host"
_LAUNCH: Final = "launch"
_STAGES: Final = "stages"
"""Of a pipeline, which share work."""
_MEMORY: Final = "memory"
"""Compute that memory bounds."""
_LONG: Final = 48
"""Characters of a name in an error."""
_MOST: Final = 1000
_MOST_MHZ: Final = 100_000
"""Of a question: beyond these it is mistyped, and times overflow."""


STAGES_BALANCED: Final = f"{_STAGES} balanced"
"""The question about a pipeline whose stages share its work evenly."""


class NoCoordinates(UsageError):
    """A question about a dimension of parallelism that the run doesn't have."""


def _iterations_in(run: Run, question: str) -> Iterable[int]:
    """The steps that a question names."""
    found = _CHANGE.fullmatch(question)
    words = ((found and found["of"]) or "").split()
    terms = " ".join(word for word in words if re.match("iteration[:=]", word, re.IGNORECASE))
    rows = selected(run, terms, question).rows if terms else slice(0)
    return [int(code) for code in distinct(run.table.iteration[rows])]


class Selection(Struct, frozen=True, eq=False):
    """What a question changes."""

    rows: Mask
    levels: frozenset[str]
    """The levels that it names."""
    kernels: Mask
    """The activities, wherever they are, of the kernels that it names."""
    is_host: bool = False
    is_launch: bool = False
    steps: Int64 | None = None
    """The steps that it names of a host."""
    is_of_stages: bool = False

    @property
    def differ_in(self) -> str:
        """What its peers differ in."""
        if not self.levels & {"gpu", *DIMENSIONS}:
            for level in ("layer", "iteration"):
                if level in self.levels:
                    return level
        return "gpu"


def _asked_steps(run: Run, view: View, asked: Sequence[str]) -> tuple[StepTimes, set[int]]:
    """The steps of a scope, and those of a long run that questions name; raises NothingToShow."""
    times = step_times(run, view)
    if not times.mean_ns > 0:
        raise NothingToShow("the steps take no time")
    if len(run.table) <= window.MAX_ROWS:
        return times, set()
    return times, {each for text in asked for each in _iterations_in(run, text)}


def typical_step(run: Run, view: View, asked: Sequence[str]) -> int:
    """The step, of those that questions replay, whose time is nearest to the median. Nothing is
    replayed for that; raises NothingToShow where nothing could be."""
    times, named = _asked_steps(run, view, asked)
    replayed, _ = window.steps_replayed(run, times.iterations, times.each_ns, named)
    there = np.isin(times.iterations, replayed)
    far = np.where(there, np.abs(times.each_ns - median_of(times.each_ns)), np.inf)
    return times.iterations[int(far.argmin())]


def activities_replayed(run: Run, view: View, asked: Sequence[str] = ()) -> int:
    """How many activities questions replay; raises NothingToShow where nothing can be."""
    times, named = _asked_steps(run, view, asked)
    return window.steps_replayed(run, times.iterations, times.each_ns, named)[1]


class Steady(Struct, frozen=True, eq=False):
    """The steps of a scope, to compare replays by."""

    replays: ReplayedSteps
    times: StepTimes

    @classmethod
    def of(cls, run: Run, view: View, asked: Sequence[str] = ()) -> Steady:
        times, named = _asked_steps(run, view, asked)
        steps = times.iterations
        key = ("replayed steps", tuple(times.gpus.tolist()), tuple(steps), tuple(sorted(named)))
        found = run.memo(
            key, lambda: ReplayedSteps.of_run(run, times.gpus, steps, times.each_ns, named)
        )
        return cls(found, times)

    @property
    def predictor(self) -> Predictor:
        return self.replays.predictor

    def mean_ns(self, predicted: Predicted) -> float:
        return self.replays.mean(self.replays.times_ns(predicted.replayed))

    def saved_ns(self, predicted: Predicted) -> Int64:
        """Of each step that counts."""
        return self.replays.now_ns - self.replays.times_ns(predicted.replayed)

    def varies_ns(self, times_ns: Int64) -> float:
        """How far from the mean of steps like it a time of one more step may be; 0 where too few
        show it.

        By the distances from the median, or from the step before where these are less: what every
        third step has, or all from one on, differs without running again.
        """
        times, steps = times_ns.astype(np.float64), self.replays.steps
        each = means_of(times, ranked(steps.iteration[self.replays.own])[1])
        if len(each) < MIN_VALUES:
            return 0.0
        between = MAD_TO_SIGMA * median_of(np.abs(np.diff(each))) / 2**0.5
        return student(len(each)) * min(spread_of(each), between)

    def computing_ns(self, predicted: Predicted) -> Int64:
        """How long the busiest stream computes, of each step that counts."""
        predictor, steps = self.predictor, self.replays.steps
        graph = predictor.graph
        sizes = run_sizes(steps.first, len(steps.activities))
        cell, node = np.repeat(np.arange(len(sizes)), sizes), graph.activities[steps.activities]
        computes = np.flatnonzero(predictor.kind[steps.activities] == Kind.COMPUTE)
        node, cell = node[computes], cell[computes]
        streams, owner = combined([cell, predictor.run.table.stream[graph.row[node]]])
        busy = sums_of(predicted.work_ns[node], owner, len(streams))
        busiest = maxima_of(busy, streams[:, 0], len(sizes))
        return busiest[self.replays.own]

    @property
    def now_ns(self) -> float:
        """The step time as measured, by replay."""
        return self.replays.mean(self.replays.now_ns)

    def replayed(self, work_ns: Int64, lag_ns: Int64 | None = None) -> float:
        graph = self.predictor.graph
        lag = graph.lag_ns if lag_ns is None else lag_ns
        return self.mean_ns(Predicted(work_ns, lag, replay(graph, work_ns, lag)))

    @property
    def error_ns(self) -> float:
        """The identity replay's step time less the measured one."""
        return self.now_ns - self.replays.mean(self._measured_ns)

    @property
    def apart_ns(self) -> float:
        """How far each step's time in the identity replay is from the measured one, on average."""
        return self.replays.mean(np.abs(self.replays.now_ns - self._measured_ns))

    @property
    def _measured_ns(self) -> Float64:
        times = self.times
        return self.replays.measured(times.times_ns, times.gpus, times.iterations)


def questions_of(text: str) -> list[str]:
    """The questions of `of=`, each once."""
    return list(dict.fromkeys(filter(None, (" ".join(p.split()) for p in text.split(SEPARATOR)))))


def is_question(text: str) -> bool:
    """Whether a text has the form of a question, whatever the run has of what it names."""
    return _CHANGE.fullmatch(SHORT.get(text.lower(), text)) is not None


def change_of(predictor: Predictor, question: str) -> Change:
    """The change that a question asks about; raises UsageError with what can be asked."""
    found = _CHANGE.fullmatch(SHORT.get(question.lower(), question))
    if found is None:
        raise UsageError(f"{question!r} is not a question: {_HELP}")
    form = "clock" if found["mhz"] else found["change"].lower()
    return replace(_change(predictor, question, found), form=form)


def _change(predictor: Predictor, question: str, found: re.Match[str]) -> Change:
    run, graph = predictor.run, predictor.graph
    chosen = selected(run, found["of"] or "", question)
    change = found["change"].lower()
    nodes = graph.activities[chosen.rows[graph.row[graph.activities]]]
    if chosen.is_host:
        every = questions.nodes_of_host(graph)
        rows, _ = questions.rows_of_hosts(graph, every)
        own = (rows >= 0) & chosen.rows[rows] if chosen.levels else np.ones(len(rows), np.bool_)
        if chosen.steps is not None:
            # The host's time belongs to the step that it is in, whatever it launches next.
            own &= np.isin(graph.iteration[every], chosen.steps)
        nodes = every[own]
    if not len(nodes):
        raise NothingToShow("the run doesn't record it")
    if np.isin(nodes, predictor.kept).all():
        raise NothingToShow("it is in no complete step")
    if float(found["factor"] or 0) > _MOST or not 1 <= float(found["mhz"] or 1) <= _MOST_MHZ:
        raise UsageError(
            f"{question!r}: a factor is at most {_MOST:,}, and a clock from 1 to {_MOST_MHZ:,} MHz"
        )
    if chosen.is_of_stages and change != "balanced":
        raise UsageError(f"{question!r}: stages are balanced; one of them is stage:1")
    if change == "hidden":
        return questions.hidden(run, graph, chosen.rows)
    if found["factor"]:
        scaled = float(found["factor"])
        if chosen.is_launch:
            return questions.launch_scaled(graph, chosen.rows, scaled)
        if chosen.is_host:
            return questions.host_scaled(graph, nodes, scaled)
        return questions.activities_scaled(graph, nodes, scaled)
    if chosen.is_host and change != "as peers":
        raise UsageError(f"{question!r}: host work takes as peers or x0.8")
    if found["mhz"]:
        return questions.at_clock(run, graph, chosen.rows, float(found["mhz"]))
    if change == "balanced":
        if chosen.is_of_stages:
            return questions.stages_balanced(run, graph, chosen.rows)
        return questions.balanced(run, graph, chosen.rows)
    if change == "at peak":
        return questions.at_peak(run, graph, chosen.rows)
    if change == "as peers":
        if chosen.is_host:
            return questions.host_as_peers(run, graph, nodes, chosen.differ_in)
        return questions.as_peers(run, graph, chosen.rows, chosen.differ_in, chosen.kernels)
    return questions.without_contention(
        predictor, chosen.rows, as_others=change == "contention as peers"
    )


def selected(run: Run, text: str, question: str) -> Selection:
    """The activities that the terms of a filter choose; those of a host by what it launches."""
    table = run.table
    rows, levels, steps = np.ones(len(table), np.bool_), set[str](), None
    kernels = rows.copy()
    words = text.lower().split()
    for word in text.split():
        if word.lower() in _KINDS:
            rows &= table.kind == _KINDS[word.lower()]
            continue
        if word.lower() == _MEMORY:
            kernels &= questions.bound_by_memory(run)
            continue
        if word.lower() in (HOST, _LAUNCH, _STAGES):
            continue
        found = _TERM.fullmatch(word)
        named = found["level"].lower() if found else "operation"
        level = _ALIASES.get(named, named)
        if found and level not in (*LEVELS, *SPLITS, *DIMENSIONS):
            raise UsageError(
                f"{question!r}: no level is called {named}; they are "
                f"{', '.join((*LEVELS, *SPLITS, 'stage', *table.coordinates, *_KINDS, HOST))}"
            )
        if level in DIMENSIONS and level not in table.coordinates:
            raise NoCoordinates(
                f"{question!r}: no coordinates of GPUs along {level}: give --parallel"
            )
        levels.add(level)
        # A term with = would compare a column, such as the time of kernels.
        is_not = bool(found["not"] or found["differs"]) if found else word.startswith("!")
        term = f"{level}:{found['value']}" if found else word.removeprefix("!")
        there = _matching(run, "gpu" if level in DIMENSIONS else level, term, question, bool(found))
        if is_not:
            there = ~there
        if level == "iteration" and HOST in words:
            steps = distinct(table.iteration[there]).astype(np.int64)
        elif level in _OF_KERNELS:
            kernels &= there
        else:
            rows &= there
    is_host, is_launch, of_stages = HOST in words, _LAUNCH in words, _STAGES in words
    if of_stages and "pp" not in table.coordinates:
        raise NoCoordinates(f"{question!r}: no pipeline stages are known: give --parallel pp=N")
    return Selection(
        rows & kernels, frozenset(levels), kernels, is_host, is_launch, steps, of_stages
    )


def _matching(run: Run, level: str, term: str, question: str, is_named: bool) -> Mask:
    """The activities whose label matches; of a plain word that of their operation or kernel."""
    table = run.table
    column = table.column(level)
    codes = distinct(column)
    labels = [table.text_of(level, code) for code in codes.tolist()]

    def values(name: str) -> Values:
        raise UsageError(f"{question!r}: {name} is a figure; a question takes labels")

    own = matching(FilterRows(level, labels, values, coordinates=table.coordinates), term)
    there = isin(column, codes[own])
    if not is_named:
        of_kernel = matching(FilterRows("kernel", table.names, values), term)
        there |= of_kernel[table.kernel]
    if not there.any():
        short = [label if len(label) < _LONG else f"{label[:_LONG]}…" for label in labels]
        raise UsageError(f"{question!r}: {term} matches nothing; {level} is {listed(short, 8)}")
    return there


class Answer(Struct, frozen=True, eq=False, dict=True):
    """What some changes together save, as replayed."""

    steady: Steady
    changes: Sequence[Change]
    expected: Predicted
    saving_ns: float

    @property
    def range_ns(self) -> tuple[float, float]:
        """The least and the most that it may be, which takes as many replays again.

        It has the spread of what each change leaves open, of the changed steps and of the GPUs,
        the replay's error, how much steps that are run again vary, and what the clock of GPUs
        with less idle time may lose.
        """
        low, high, _ = self._ends
        return low, high

    @property
    def bound_ns(self) -> float:
        """The most that it may be in these steps, however much it differs between them."""
        return self._ends[2]

    @cached_property
    def _ends(self) -> tuple[float, float, float]:
        steady, expected, saving = self.steady, self.expected, self.saving_ns
        predictor, replays = steady.predictor, steady.replays
        now = steady.now_ns
        start = expected, predictor.shares_in(expected.replayed)
        others = [predictor.predict(self.changes, side, *start) for side in (LEAST, MOST)]
        found = [saving, *(now - steady.mean_ns(each) for each in others)]
        lag = predictor.doubtful_lag_ns
        if lag is not None:
            graph = predictor.graph
            both, key = np.minimum(lag, expected.lag_ns), ("without doubtful waits", predictor)
            doubtless = predictor.run.memo(key, lambda: replay(graph, graph.work_ns, lag))
            least = steady.mean_ns(Predicted(graph.work_ns, lag, doubtless))
            found.append(least - steady.replayed(expected.work_ns, both))
        saved = steady.saved_ns(expected)
        nodes = np.concatenate([change.nodes for change in self.changes])
        steps = replays.steps.iteration[replays.own]
        changed = np.isin(steps, predictor.graph.iteration[nodes]) | (not len(nodes))
        share = float(replays.weight[changed].sum())
        by_step = means_of(saved[changed].astype(np.float64), ranked(steps[changed])[1])
        spread = 0.0
        if len(by_step) > 1:
            spread = float(by_step.std())
            if len(by_step) >= MIN_VALUES:  # What grows from step to step leaves nothing open.
                spread = min(spread, float(np.diff(by_step).std()) / 2**0.5)
            spread *= 2 * share / len(by_step) ** 0.5
        # Steps that are run again take another time than when they were measured.
        few = share / max(len(by_step), 1) ** 0.5
        again = steady.varies_ns(replays.times_ns(expected.replayed)) * few
        sure = abs(saving * steady.error_ns) / steady.times.mean_ns
        here, doubt = again + sure, max(spread, replays.error(saved), again) + sure
        by_gpu = replays.by_gpu(saved)
        less, more = self._paced_ns(by_gpu)
        low, high = min(found), max(*found, float(by_gpu.max()))
        low, high, bound = low - doubt - less, high + doubt + more, high + here + more
        # A step takes no less than what its GPU computes.
        computing = steady.computing_ns(others[0])
        least = replays.mean(computing) - steady.varies_ns(computing) * few - more
        most = max(now - max(least, 0.0), saving)
        return low, min(high, most), min(bound, most)

    def _paced_ns(self, saved_ns: Float64) -> tuple[float, float]:
        """How much longer and shorter the step may be, since GPUs compute at another pace with
        less or more idle time, by what each GPU saves."""
        steady, predictor = self.steady, self.steady.predictor
        graph, replays = predictor.graph, steady.replays
        computes = graph.activities[predictor.kind == Kind.COMPUTE]
        number = len(saved_ns)
        gpu = np.searchsorted(distinct(replays.steps.gpu[replays.own]), graph.gpu[computes])
        steps = max(len(replays.steps.gpu) / number, 1.0)
        before, after = (
            sums_of(work[computes], gpu, number) / steps
            for work in (graph.work_ns, self.expected.work_ns)
        )
        less_idle = saved_ns - (before - after)[:number]
        change = predictor.pace * less_idle * after[:number] / max(steady.now_ns, 1.0)
        return max(float(change.max()), 0.0), max(float(-change.min()), 0.0)


def answer_of(steady: Steady, changes: Sequence[Change]) -> Answer:
    expected = steady.predictor.predict(changes)
    return Answer(steady, changes, expected, steady.replays.mean(steady.saved_ns(expected)))
