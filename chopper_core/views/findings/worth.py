"""What a finding is worth: the answer to the what-if questions that remove what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.graph.questions import Change, Predictor
from chopper_core.model.column_names import MICROBATCH
from chopper_core.model.side_table import HostLane
from chopper_core.util.arrays import Float64
from chopper_core.util.errors import NothingToShow
from chopper_core.views.findings.remedies import question_of
from chopper_core.views.findings.rule import Finding, FindingsContext
from chopper_core.views.whatif import Answer, Steady, answer_of, change_of, questions_of

MAX_ERROR: Final = 0.02
"""Of the step: with a larger error of the replay, savings stay estimates."""
MAX_UNLAUNCHED: Final = 0.1
"""Of the activities: without launch records, what their hosts did before them is unknown."""


class Worth(Struct, frozen=True, eq=False):
    """The steps of a context, to replay them without what findings cost."""

    context: FindingsContext
    steady: Steady
    answers: dict[str, Answer | None] = {}
    changes: dict[tuple[Predictor, str], Change] = {}
    """Of each question of some steps: others ask it too, together with their own."""

    @classmethod
    def of(cls, context: FindingsContext) -> Worth | None:
        """None where steps can't be replayed: unknown hosts, or a large error."""
        run = context.run
        if context.view.path:
            return None  # What a part is worth to the whole step says little about the part.
        is_schedule = MICROBATCH in run.table.measured
        # Without the calls of hosts, their waiting for GPUs looks like work.
        is_known = is_schedule or (len(run.side(HostLane).gpu) and not run.is_reconstructed)
        if not is_known:
            return None
        try:
            steady = Steady.of(run, context.view)
        except NothingToShow:
            return None
        graph = steady.predictor.graph
        if not is_schedule and graph.unlaunched > MAX_UNLAUNCHED * len(graph.activities):
            return None
        if abs(steady.error_ns) > MAX_ERROR * steady.times.mean_ns:
            return None
        return cls(context, steady)

    def answer(self, remedy: str) -> Answer | None:
        """The answer to some questions together; of a long run other steps are replayed for a
        question of some iterations. None where the run lacks what they need."""
        if remedy not in self.answers:
            try:
                self.answers[remedy] = answer_of(*self._asked([remedy]))
            except NothingToShow:
                self.answers[remedy] = None
        return self.answers[remedy]

    def saving_ns(self, remedies: Sequence[str], near: str = "") -> float:
        """What some remedies save together; of several that are compared, with the waits without
        the largest, `near`, since to find their own takes four replays."""
        steady, changes = self._asked(remedies)
        found = self.answer(near) if near else None
        is_same = found is not None and found.steady.predictor is steady.predictor
        start = found.expected if found is not None and is_same else None
        replayed = steady.predictor.predict(changes, start=start)
        return steady.mean_ns(steady.predictor.identity) - steady.mean_ns(replayed)

    def _asked(self, remedies: Iterable[str]) -> tuple[Steady, list[Change]]:
        asked = [each for remedy in remedies for each in questions_of(remedy)]
        steady = Steady.of(self.context.run, self.context.view, asked)
        predictor, known = steady.predictor, self.changes
        for each in asked:
            if (predictor, each) not in known:
                known[predictor, each] = change_of(predictor, each)
        return steady, [known[predictor, each] for each in asked]

    def of_finding(self, finding: Finding) -> Finding:
        """A finding with its remedy, and the saving of that."""
        remedy = finding.remedy or question_of(self.context, finding)
        if not remedy or finding.saving_ns is None or (found := self.answer(remedy)) is None:
            return finding
        return replace(finding, remedy=remedy, is_replayed=True, saving_ns=found.saving_ns)

    def range_ns(self, finding: Finding) -> tuple[float | None, float | None]:
        found = self.answer(finding.remedy) if finding.is_replayed else None
        return (finding.low_ns, finding.high_ns) if found is None else found.range_ns

    def removed_ns(self, finding: Finding) -> Float64 | None:
        """What a finding's remedy takes from the work of each node, and from each edge's lag; None
        where it isn't known of the same steps as that of the others."""
        found = self.answer(finding.remedy) if finding.is_replayed else None
        if found is None or found.steady.predictor is not self.steady.predictor:
            return None
        graph, expected = self.steady.predictor.graph, found.expected
        lag = graph.lag_ns - np.maximum(expected.lag_ns, 0)
        work = graph.work_ns - expected.work_ns
        removed: Float64 = np.maximum(np.concatenate([work, lag]), 0).astype(np.float64)
        return removed
