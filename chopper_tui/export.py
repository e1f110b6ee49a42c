"""Views as people take them along: printed, or written to a new file, whole or not at all."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from chopper_core.model.phrases import level_title
from chopper_core.model.run import Run
from chopper_core.model.units import significant
from chopper_core.model.view import View
from chopper_core.render import FORMATS, render_frame
from chopper_core.render.cells import column_texts
from chopper_core.render.glyphs import UNICODE, Glyphs
from chopper_core.render.palette import Paint, plain
from chopper_core.util.atomic import publish
from chopper_core.util.compression import compressed, uncompressed_name
from chopper_core.util.errors import DataError, UsageError
from chopper_core.util.escape import Escaped, clean, escape_lines
from chopper_core.views import OVERVIEW
from chopper_core.views.frame import Frame

_TEXT_WIDTH: Final = 120
_CHART_LINES: Final = 12
_MOST_ROWS: Final = 1000
"""Of a table for people; without a limit CSV has all, and JSON its own number."""
_ISSUE_ROWS: Final = 30
_ISSUE_LINES: Final = 60
BENCHMARKS: Final = ("hipblaslt", "torch")
"""Columns of commands that run a shape alone, the first choice first."""
FOLDER: Final = "chopper-snapshots"
_ENDINGS: Final = {"text": "txt", "markdown": "md", "csv": "csv", "json": "json"}
_ALIASES: Final = {"md": "markdown"}
PICTURE: Final = "svg"
SNAPSHOTS: Final = (*FORMATS, *_ALIASES, PICTURE)


def scope_lines(
    run: Run, view: View, width: int, glyphs: Glyphs, paint: Paint = plain
) -> list[str]:
    from chopper_core.views.shared.signal_charts import signal_chart
    from chopper_tui.draw import signal_plot as plot
    from chopper_tui.draw.figures import figures_shown
    from chopper_tui.draw.pieces import painted_line
    from chopper_tui.screen_data import KEY_FIGURES, key_line

    line = key_line(figures_shown(run, view, KEY_FIGURES), view, glyphs)
    seen = signal_chart(run, view, plot.bins_for(run.signal(view.signal), width))
    rows = plot.draw_signals(seen, width, _CHART_LINES, glyphs)
    lines = [
        "  ".join(f"{title} {text}".strip() for title, text in line),
        "",
        plot.plot_headline(seen, width, glyphs),
        *(painted_line(row, paint) for row in rows),
    ]
    return [*(each.rstrip() for each in lines), ""]


def printed(
    frame: Frame,
    format_name: str = "text",
    *,
    limit: int | None = None,
    width: int = 0,
    glyphs: Glyphs = UNICODE,
    charted: Run | None = None,
    paint: Paint = plain,
    has_pictures: bool = False,
    is_brief: bool = False,
) -> Escaped:
    """A frame in a format of `render`, with its pictures where it is read by people.

    A node of the tree has none; with its run its key figures and chart stand there.
    """
    drawn: list[str] = []
    if limit is None and format_name in ("text", "markdown"):
        limit = _MOST_ROWS
    paint = paint if format_name == "text" else plain
    if format_name in ("text", "markdown") and charted is not None and not frame.view.name:
        cells = min(width or _TEXT_WIDTH, _TEXT_WIDTH)
        drawn = scope_lines(charted, frame.view, cells, glyphs, paint)
    if format_name in ("text", "markdown") and frame.charts:
        from chopper_tui.draw.charts import as_lines

        drawn = as_lines(frame.charts, min(width, _TEXT_WIDTH), glyphs, paint)
    text = render_frame(
        frame,
        format_name,
        limit=limit,
        width=width,
        glyphs=glyphs,
        drawn=drawn,
        paint=paint,
        has_pictures=has_pictures,
        is_brief=is_brief,
    )
    return escape_lines(text, is_styled=paint is not plain)


def row_text(frame: Frame, row: int) -> Escaped:
    columns = [*column_texts(frame)]
    heads = [level_title(frame.level), *(column.header for column in columns), "address"]
    cells = [clean(frame.labels[row])]
    for column in columns:
        values = frame.values[column.metric.name]
        number = values.at(row)
        if column.is_word or number is None:
            cells.append(column.cell(values, row, UNICODE))
        else:
            cells.append(significant(number / column.scale.divisor))
    cells.append(clean(frame.addresses(row)))
    return escape_lines("\t".join(heads) + "\n" + "\t".join(cells))


def benchmark_line(run: Run, frame: Frame, row: int, tool: str = "") -> Escaped:
    """The command that runs a row's shape alone, of the first tool that can or of the one given.

    Raises UsageError where rows are not shapes, or the row has no such command.
    """
    from chopper_core.views.query import query

    if tool and tool not in BENCHMARKS:
        raise UsageError(f"no benchmark {tool!r}; choose from {', '.join(BENCHMARKS)}")
    if frame.level != "shape" or not len(frame):
        raise UsageError("a benchmark runs a shape: see :view kernels, by shape, or :view roofline")
    names = (tool,) if tool else BENCHMARKS
    found = query(run, replace(frame.view, columns=names)).row(row)
    lines = [str(found[name]) for name in names if found[name] is not None]
    if not lines:
        raise UsageError(f"no {' or '.join(names)} command runs {frame.labels[row]}")
    return escape_lines(lines[0])


def issue_text(run: Run, frame: Frame) -> Escaped:
    from html import escape

    from chopper_core.render import info
    from chopper_core.render.text import escaped
    from chopper_core.util.errors import ChopperError
    from chopper_core.views.query import query

    root = View(frame.view.run, overrides=frame.view.overrides)
    lines: list[str] = []
    # A run without times has neither; its table and its sources are still worth a text.
    with suppress(ChopperError):
        headline = query(run, replace(root, name=OVERVIEW)).headline
        lines = [f"**{escaped(clean(line))}**\n" for line in headline]
        found = query(run, replace(root, name="findings"))
        lines += ["### Findings", ""]
        lines += [
            f"- {escaped(clean(found.labels[row]))} `{clean(found.addresses(row))}`"
            for row in range(len(found))
        ]
    lines += ["", "### Table", "", render_frame(frame, "markdown", limit=_ISSUE_ROWS)]
    sources = escape(info.info_text(run), quote=False).splitlines()[:_ISSUE_LINES]
    lines += ["### Sources", "", "<details><pre>", *sources]
    return escape_lines("\n".join([*lines, "</pre></details>", ""]))


def is_picture(arguments: str) -> bool:
    return _parse(arguments)[0] == PICTURE


def write_snapshot(
    run: Run, frame: Frame, arguments: str = "", picture: str = ""
) -> tuple[Path, str]:
    """Write a frame; the arguments are `[format] [path]`. Returns the file's path and format.

    `picture` is the screen as SVG, written where the format asks for it.
    """
    format_name, path = _parse(arguments)
    content = (
        escape_lines(picture)
        if format_name == PICTURE
        else printed(frame, format_name, charted=run)
    )
    if path is not None:
        return write_new(Path(os.path.expanduser(path)), content), format_name
    ending = _ENDINGS.get(format_name, format_name)
    return write_numbered(snapshot_stem(frame.view), ending, content), format_name


def write_numbered(stem: str, ending: str, content: Escaped) -> Path:
    """Write a new file with the next free number in the folder for snapshots; returns its path."""
    from chopper_tui.config import state_directory

    for folder in (Path(FOLDER), state_directory() / FOLDER):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for number in count(1):
                path = folder / f"{stem}-{number}.{ending}"
                with suppress(FileExistsError):
                    publish(path, content.encode(), is_new=True)
                    return path
        except OSError as error:
            reason = error
    raise DataError(f"the snapshot can't be written: {reason}")


def _parse(arguments: str) -> tuple[str, Path | None]:
    first, _, rest = arguments.strip().partition(" ")
    if first in SNAPSHOTS:
        return _ALIASES.get(first, first), Path(rest.strip()) if rest.strip() else None
    if first and not rest and re.fullmatch(r"[a-z]+", first):
        raise UsageError(f"no format {first!r}; the formats are {', '.join(SNAPSHOTS)}")
    path = Path(arguments.strip()) if first else None
    by_ending = {ending: name for name, ending in _ENDINGS.items()} | {PICTURE: PICTURE}
    ending = Path(uncompressed_name(path.name)).suffix[1:] if path else ""
    return by_ending.get(ending, "text"), path


def snapshot_stem(view: View) -> str:
    """The name of a scope's file without number and ending."""
    parts = [Path(view.run).name or "run", *(f"{a}{b}" for a, b in view.scope)]
    return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(parts))[:80].strip("._-") or "run"


def write_new(path: Path, content: Escaped) -> Path:
    """Write a file that doesn't exist; raises UsageError if it does, DataError if it can't be."""
    try:
        publish(path, compressed(content.encode(), path.name), is_new=True)
    except FileExistsError as error:
        raise UsageError(f"{path} exists already; nothing was written") from error
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror}") from error
    return path
