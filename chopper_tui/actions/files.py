"""Actions on files: writing an export or a report, opening another run, recording a window."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chopper_core.model.view import View
from chopper_core.render.cells import crumb
from chopper_core.util.patterns import late
from chopper_core.util.progress import stop_unwanted
from chopper_tui.actions.compare import refuse_of_set
from chopper_tui.actions.program import open_command
from chopper_tui.completions import runs_next_to
from chopper_tui.export import snapshot_stem, write_new, write_numbered
from chopper_tui.keymap import CHOPPER, EXPORT, action
from chopper_tui.steps import run_in_thread

if TYPE_CHECKING:
    from chopper_core.model.run import Run
    from chopper_tui.screen import Explorer

_PAGE: Final = "html"
_STEP: Final = late(r"step=(\d+)(?:\s+(.+))?$")
_JSON: Final = ("perfetto",)
"""Formats whose files are JSON."""


@action(EXPORT, title="Export for another program", takes="FORMAT [step=N] [FILE]")
async def export(screen: Explorer, argument: str) -> None:
    """Write the run for another program: perfetto, chakra, parquet, tables and more. Within a step,
    with the cursor on one, or with `step=N`, formats that take a step write it alone, of all GPUs.
    """
    from chopper_core.render.exports import EXPORTS, export_format, format_named

    refuse_of_set(screen)
    name, _, path = argument.partition(" ")
    asked = _STEP.match(path)
    if not name:
        screen.say(f"the formats are {', '.join(EXPORTS)}")
        open_command(screen, "export ")
        return
    name = format_named(name)
    step = screen.step if "iteration" in export_format(name).TAKES else ""
    if asked is not None:
        step, path = (
            asked[1],
            asked[2] or await run_in_thread(_next_name, screen.view, name, asked[1]),
        )
    if not path.strip():
        what = crumb("iteration", step) if step else "the run"
        screen.say(f"the file to write {what} to: :export {name} FILE")
        open_command(screen, f"export {name} ")
        return
    screen.say(f"writing {path.strip()}")
    screen.say(await run_in_thread(_export, screen.run, step, name, _file(path)))


def _next_name(view: View, name: str, step: str) -> str:
    """A name for the file of a step, in this directory, that no file has."""
    stem = f"{snapshot_stem(View(view.run))}-step-{step}"
    suffix = "json" if name in _JSON else name
    names = (f"{stem}{'' if number == 1 else f'-{number}'}.{suffix}" for number in range(1, 10_000))
    return next(each for each in names if not os.path.lexists(each))


def _export(run: Run, step: str, name: str, path: Path) -> str:
    """Write the export of a step or of the run; returns a sentence on it and on what it lacks."""
    from chopper_core.render import exports

    options = exports.ExportOptions(iteration=int(step) if step else None)
    notes = exports.export(run, name, path, options, _going_on)
    of_what = crumb("iteration", step) if step else "the run"
    more = f" (and {len(notes) - 1} more; `chopper export` lists them)" if len(notes) > 1 else ""
    return f"wrote {of_what} as {name}: {path}" + "".join(f"; {each}" for each in notes[:1]) + more


@action(EXPORT, title="Report as a page", takes="[FILE]")
async def report(screen: Explorer, argument: str) -> None:
    """Write the scope as one HTML page for a ticket, as `chopper report` does: findings, evidence,
    tables, pictures; with a baseline, the comparison too.
    """
    refuse_of_set(screen)
    screen.say("writing the report")
    path = await run_in_thread(_report, screen.run, screen.view, argument.strip())
    place = " › ".join(crumb(*step) for step in screen.view.scope) or "the run"
    screen.say(f"wrote the report of {place} as HTML: {path}")


def _report(run: Run, view: View, name: str) -> Path:
    from chopper_core.render.report import report
    from chopper_tui import __version__
    from chopper_tui.draw.page import LOOK

    plain = View(view.run, view.path, view.order, baseline=view.baseline, overrides=view.overrides)
    page = report(run, plain, LOOK, __version__, _going_on)
    if name:
        return write_new(_file(name), page)
    return write_numbered(f"{snapshot_stem(plain)}-report", _PAGE, page)


def _file(text: str) -> Path:
    return Path(os.path.expanduser(text.strip()))


def _going_on(step: str, done: int, total: int) -> None:
    stop_unwanted()


@action(CHOPPER, title="Open another run", takes="RUN")
async def open_(screen: Explorer, argument: str) -> None:
    """Open another run in place of this one: a file, a directory, a store, or an address of one;
    alone it lists the directories next to this run, and asks for others.
    """
    near = [] if argument else await run_in_thread(runs_next_to, screen.home.name)
    if near:
        options = [(str(path), path.name, str(path.parent)) for path in near]
        options += [("", "another path …", "Type it: Tab completes names.")]

        async def chosen(path: str) -> None:
            await open_(screen, path) if path else open_command(screen, "open ")

        screen.choose("Open another run", options, str(near[0]), chosen)
        return
    if not argument:
        open_command(screen, "open ")
        return
    await screen.app.open_run(argument)  # type: ignore[attr-defined]


@action(CHOPPER, title="Record a window")
async def record(screen: Explorer, _: str) -> None:
    """Record steps of this run's job now, on all its ranks, while `chopper record` runs it; the
    same as `chopper record --trigger RUN`.
    """
    from chopper_core.record.command import trigger

    refuse_of_set(screen)
    said = await run_in_thread(trigger, Path(screen.home.name))
    is_followed = screen.app.follower is not None  # type: ignore[attr-defined]
    screen.say(said if is_followed else f"{said}; :watch shows them when they are written")
