"""What a replay can be asked about a row of a view."""

from __future__ import annotations

from typing import Final

from chopper_core.columns.filter import only
from chopper_core.model.parallel import DIMENSIONS
from chopper_core.model.table import ACTIVITY, LEVELS, NO_LABEL_TEXT
from chopper_core.model.view import SEPARATOR, View
from chopper_core.views.frame import Frame

QUESTION: Final = "question"
"""The level of rows that are questions."""
ALL_TOGETHER: Final = "all together"
"""The row of all questions of a view."""


def question_about(view: View, frame: Frame, row: int) -> str:
    """The question of the step without what a row of a view shows; empty where it has none."""
    if frame.level == QUESTION:
        asked = [each for each in frame.labels[1:] if each != ALL_TOGETHER]
        return SEPARATOR.join(asked if row in (0, len(asked) + 1) else [frame.labels[row]])
    if "remedy" in frame.values:
        return str(frame.values["remedy"].cell(row) or "") if row < len(frame.labels) else ""
    terms = dict(view.scope)
    if frame.level in (*LEVELS, *DIMENSIONS) and row < len(frame.labels):
        terms[frame.level] = frame.labels[row]
    terms = {level: label for level, label in terms.items() if label != NO_LABEL_TEXT}
    known = [only(level, [label]) for level, label in terms.items() if level != ACTIVITY]
    return " ".join([*known, "as peers"]) if known else ""
