"""The one runner behind the command line, Python, SQL and the server: one answer for all of them.

A question is an address with changes, or a change of a run by `what_if`, or two runs by `diff`;
each becomes a view, and the answer is its frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeGuard
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.answers.opening import (
    ReadOptions,
    all_read,
    as_asked,
    base_of_view,
    opened_run,
)
from chopper_core.ingest.watch import RunFiles
from chopper_core.model.overrides import NO_OVERRIDES, Overrides
from chopper_core.model.run import Run
from chopper_core.model.view import SEPARATOR, View, with_view
from chopper_core.util.nearby import noted_looks
from chopper_core.util.progress import Progress, silent

if TYPE_CHECKING:
    from chopper_core.views.frame import Frame


class _Opened(Struct):
    """A run, its files, and itself together with runs to compare with."""

    run: Run
    files: RunFiles
    joined: dict[tuple[str, Overrides], Run]


class Runner:
    """Opens runs as they are asked about, again where their files change, and answers views."""

    def __init__(
        self,
        how: ReadOptions | None = None,
        progress: Progress = silent,
        check: Callable[[str, Overrides], None] = lambda name, overrides: None,
        only: Run | None = None,
    ) -> None:
        """`check` raises a ChopperError for a name or a file of overrides that may not be opened;
        `only` is a run that is open, and stays the one of its name."""
        self._how = how or ReadOptions()
        self._progress = progress
        self._check = check
        self._only = only
        self._runs: dict[tuple[str, Overrides], _Opened] = {}

    def run_of(self, view: View) -> Run:
        """The run of a view with its baseline, as its questions predict it; raises ChopperError."""
        known = self._opened(view.run, view.overrides)
        base, joined = base_of_view(view), known.run
        if base and base not in known.run.others:
            other = self._opened(base, view.overrides.of_base).run
            key = (base, view.overrides.of_base)
            if key not in known.joined or known.joined[key].others[base] is not other:
                others = {**known.run.others, base: other}
                known.joined[key] = replace(known.run, others=others)
            joined = known.joined[key]
        return as_asked(joined, view)

    def _opened(self, name: str, overrides: Overrides) -> _Opened:
        self._check(name, overrides)
        key = (name, replace(overrides, predicted="", base_parallel=""))
        known = self._runs.get(key)
        only = self._only
        if known is None and _is_run(only, name, overrides):
            known = self._runs[key] = _Opened(only, RunFiles(), {})
        if known is None or known.files.news():
            files = RunFiles(name)
            before = files.state()
            with noted_looks() as looks:
                run = opened_run(name, overrides, self._how, self._progress)
            files.note(before, looks)
            known = self._runs[key] = _Opened(all_read(run, self._progress), files, {})
        return known

    def frame(self, view: View) -> Frame:
        """The frame of a view; without rows and with a note where it has nothing to show."""
        from chopper_core.views.query import frame_of

        return frame_of(self.run_of(view), view)


def _is_run(run: Run | None, name: str, overrides: Overrides) -> TypeGuard[Run]:
    """Whether a run is the one of a name and overrides."""
    if run is None or run.name != name:
        return False
    return overrides.of_run in (NO_OVERRIDES, run.overrides.of_run)


def shown(
    view: View,
    columns: Iterable[str] | str = "",
    sort: str = "",
    filter: str = "",  # noqa: A002
) -> View:
    """A view with other columns, sort and filter, where any are given."""
    names = columns.split(",") if isinstance(columns, str) else columns
    chosen = tuple(name for name in names if name)
    return replace(
        view,
        columns=chosen or view.columns,
        sort=sort or view.sort,
        filter=filter or view.filter,
    )


def what_if_view(view: View, questions: Sequence[str], by: str = "") -> View:
    """The view `whatif` of a run or a part of one, with questions."""

    view = with_view(view, "whatif")
    return replace(view, of=SEPARATOR.join(questions) or view.of, by=by or view.by)


def against(name: str, base: str, path: str = "") -> str:
    """The address of a node of a run with the same node of another as its baseline."""
    there = f":{path}" if path else ""
    return f"{name}{there}?base={quote(base, safe='/', errors='surrogateescape')}"


def compared_address(base: str, name: str, path: str = "", by: str = "") -> str:
    """The address of the view `compare` of a run, or a part of it, with its baseline."""
    return f"{against(name, base, path)}&view=compare{f'&by={quote(by)}' if by else ''}"
