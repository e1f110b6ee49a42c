"""What a finding is worth: the answer to the what-if questions that remove what it costs."""

from __future__ import annotations

from collections.abc import Iterable
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
    answers: dict[str, tuple[Steady, Answer] | None] = {}
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

    def answer(self, remedy: str) -> tuple[Steady, Answer] | None:
        """The answer to some questions together, and the steps that it is about: of a long run
        other ones are replayed for a question of some iterations. None where the run lacks what
        they need."""
        if remedy not in self.answers:
            try:
                steady, changes = self._asked([remedy])
                self.answers[remedy] = steady, answer_of(steady, changes)
            except NothingToShow:
                self.answers[remedy] = None
        return self.answers[remedy]

    def saving_ns(self, remedies: Iterable[str]) -> float:
        """What some remedies save together."""
        steady, changes = self._asked(remedies)
        replayed = steady.predictor.predict(changes)
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
        """A finding with its remedy, and the saving and range of that."""
        remedy = finding.remedy or question_of(self.context, finding)
        if not remedy or finding.saving_ns is None or (found := self.answer(remedy)) is None:
            return finding
        _, answer = found
        return replace(
            finding,
            remedy=remedy,
            is_replayed=True,
            saving_ns=answer.saving_ns,
            low_ns=answer.low_ns,
            high_ns=answer.high_ns,
        )

    def removed_ns(self, finding: Finding) -> Float64 | None:
        """What a finding's remedy takes from the work of each node, and from each edge's lag; None
        where it isn't known of the same steps as that of the others."""
        found = self.answer(finding.remedy) if finding.is_replayed else None
        if found is None or found[0].predictor is not self.steady.predictor:
            return None
        graph, expected = self.steady.predictor.graph, found[1].expected
        lag = graph.lag_ns - np.maximum(expected.lag_ns, 0)
        work = graph.work_ns - expected.work_ns
        removed: Float64 = np.maximum(np.concatenate([work, lag]), 0).astype(np.float64)
        return removed
