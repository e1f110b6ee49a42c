"""The tabs of a run: which there are, in what order, and why one can't be shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chopper_core.model.run import Run
from chopper_core.util.naming import names_meant
from chopper_core.views import OVERVIEW, RUNS, SET_VIEWS, TABS, WHATIF, Tab, view_name, view_spec
from chopper_core.views.spec import SeveralRuns
from chopper_tui.keymap import EXPLORE, INFO, LIVE

Tabs = Mapping[str, Tab]
"""Name of a view → its tab, in the order of the places."""
_OF_ONE: Final = (OVERVIEW, EXPLORE, "icicle", WHATIF)
"""Views of a single run that don't say so themselves."""
_SET_TABS: Final = {name: Tab("6", name) for name in SET_VIEWS}


def tabs_of(run: Run) -> Tabs:
    """All tabs of a run, or of a set of runs, whose own ones come first."""
    if isinstance(run, SeveralRuns):
        return _SET_TABS | TABS
    first = [LIVE] if run.recent is not None else []
    own = (*first, *(name for name in TABS if name not in first))
    place = own.index(WHATIF) + 1
    runs = [RUNS] if RUNS in _SET_TABS else []
    return {name: TABS.get(name) or _SET_TABS[name] for name in (*own[:place], *runs, *own[place:])}


def tabs_at(tabs: Tabs, place: str) -> tuple[str, ...]:
    """The views of a place, in the order in which its key opens them."""
    return tuple(name for name, tab in tabs.items() if tab.place == place)


def view_named(text: str, tabs: Tabs) -> str:
    """The view of a name or of a tab's title, as people type them; raises UsageError."""
    titled = {tab.title: name for name, tab in tabs.items()}
    found = names_meant(text, (*tabs, INFO), titled)
    return found[0] if len(found) == 1 else view_name(text)


def question_of_place(name: str) -> str:
    return "the scope's children, level by level" if name == EXPLORE else view_spec(name).question


def reason_against(home: Run, run: Run, name: str) -> str:
    """Why a run can't have a tab, where its answer isn't needed to know; empty: it may."""
    if isinstance(run, SeveralRuns):
        reason = view_spec(name).of_one_run if name not in _OF_ONE else "shows a single run"
        title = TABS[name].name if name in TABS else name
        return f"{title} {reason}; Enter opens the run under the cursor" if reason else ""
    if name == RUNS and not isinstance(home, SeveralRuns):
        return "runs needs several: `chopper DIR` opens all runs below a directory"
    return ""
