"""The views that nobody has opened yet, worked out while nothing else is to be done."""

from __future__ import annotations

from contextlib import suppress
from threading import Event
from typing import Final

from chopper_core.model.run import Run
from chopper_core.model.view import View, with_view
from chopper_core.views import VIEWS
from chopper_core.views.query import answer

FEWEST: Final = 1 << 17
"""Activities from which on a view may take longer than a person notices."""
MOST: Final = 1 << 22
"""Activities up to which what views keep takes little memory beside the run."""
_FIRST_S: Final = 0.5
"""What is drawn first has this long for itself."""
_PAUSE_S: Final = 0.05
"""Between two views, for the keys."""


def work_ahead(run: Run, view: View, stopped: Event) -> None:
    """Ask every question of a view's node, so that its answer is there when somebody asks it.

    Of small runs nothing is: their answers take no time; of the largest neither, for the memory.
    """
    if not FEWEST <= len(run.table) <= MOST:
        return
    pause = _FIRST_S
    for name in VIEWS:
        if stopped.wait(pause):
            return
        pause = _PAUSE_S
        # Whatever is wrong with a view is told to whoever opens it.
        with suppress(Exception):
            answer(run, with_view(view, name))
