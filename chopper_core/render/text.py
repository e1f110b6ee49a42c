"""A frame as a text table, as markdown and as HTML, for panes, issues and notebooks."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from chopper_core.model.attributes import attribute_text
from chopper_core.model.phrases import BETWEEN_FACTS, level_title
from chopper_core.render.cells import (
    BARS,
    SENTENCES,
    ColumnText,
    baseline_title,
    cell_width,
    column_texts,
    crumb,
    fitting,
    pad,
    statistic_title,
    title_of,
    wrapped,
)
from chopper_core.render.exchange import limit_notes
from chopper_core.render.glyphs import UNICODE, Glyphs, SparkScale, bar
from chopper_core.render.names import fitting_names, row_names
from chopper_core.render.palette import MEANINGS, Paint, plain
from chopper_core.util.escape import clean
from chopper_core.views.frame import Frame
from chopper_core.views.shared.marks import INKS, Tint, sign_of, tints

BAR_WIDTH: Final = 10
SPARK_BINS: Final = 24
_MIN_NAME: Final = 16
_MIN_WITH_SPARKS: Final = 3
"""Sparklines are left out where fewer columns fit next to them."""
_MAX_NAME: Final = 100
_HTML_ROWS: Final = 60
_HTML_NAME: Final = 60
"""Characters of a name in a page, at most; longer ones are cut there."""
_HTML_GAP: Final = 2
_HTML_BAR: Final = "linear-gradient(var(--share,#b9dcf8),var(--share,#b9dcf8))"
_HTML_INKS: Final = {
    name: f"var(--{name},{MEANINGS[name][1]})" for name in ("warning", "alarm", "good")
}
_MAX_ATTRIBUTE: Final = 240


def as_text(
    frame: Frame,
    *,
    limit: int | None = None,
    width: int = 0,
    glyphs: Glyphs = UNICODE,
    drawn: Sequence[str] = (),
    paint: Paint = plain,
) -> str:
    """A frame as a text table of at most `width` cells (0: as wide as it needs).

    `drawn` are its charts as lines, printed above the table; `paint` colours the table.

    Columns that don't fit are left out from the last on, unless the view chose its columns.
    """
    count = len(frame) if limit is None else min(limit, len(frame))
    columns = [each for each in column_texts(frame) if not _is_prose(frame, each.metric.name)]
    cells = {column.metric.name: _column(frame, column, count, glyphs) for column in columns}
    names = row_names(frame, glyphs, count)
    shown, widths, name_width, sparks = _layout(frame, columns, cells, names, width)
    drawn_signals = [
        (signal, means, SparkScale.of(means))
        for signal in (frame.signal, *frame.signals)[:sparks]
        for means in (frame.means(np.arange(count), SPARK_BINS, signal),)
    ]

    def line(name: str, row: int, inks: Sequence[str] = (), *more: str) -> str:
        """A line of the table; the cells of a column begin with its header and total."""
        texts = [
            column.aligned(cells[column.metric.name][row], widths[column.metric.name])
            for column in shown
        ]
        inked = map(paint, texts, inks) if inks else texts
        return "  ".join([pad(name, name_width), *inked, *more]).rstrip()

    lines = [paint(_breadcrumb(frame, glyphs), "strong"), *_headline(frame, width, paint), *drawn]
    signals = [scale.title(signal) for signal, _, scale in drawn_signals]
    signals = [pad(title, SPARK_BINS) for title in signals[:-1]] + signals[-1:]
    lines.append(paint(line(level_title(frame.level), 0, (), *signals), "header"))
    is_prose = frame.level in SENTENCES
    short = names if is_prose else fitting_names(names, name_width, glyphs)
    inked = [_inks(frame, column) for column in shown] if paint is not plain else []
    inks = [*zip(*inked, strict=True)] or [()] * count
    heading = ""
    for row in range(count):
        if is_prose and (group := _group(frame, row)) != heading:
            heading = group
            lines += [paint(f"{glyphs.spelled('──')} {heading}", "dim")]
        name = wrapped(names[row], name_width) if is_prose else [short[row]]
        spark = [
            paint(pad(scale.line(means[row], signal.unit, glyphs), SPARK_BINS), "good")
            for signal, means, scale in drawn_signals
        ]
        lines += [line(name[0], row + 2, inks[row], *spark), *name[1:]]
        if is_prose:
            # A part is indented, and what stands below it too.
            margin = names[row][: len(names[row]) - len(names[row].lstrip())] + "  "
            lines += _prose(frame, row, width, margin)
            lines += [paint(f"{margin}{clean(frame.addresses(row))}", "dim"), ""]
    if _has_total(frame):
        lines.append(paint(line(_total_title(frame), 1), "strong"))
    if lines[-1]:
        lines.append("")
    footer = [paint(text, "dim") for text in _footer(frame, count, drawn)]
    return glyphs.spelled("\n".join([*lines, *footer]) + "\n")


_PROSE: Final = {"detail": "", "advice": "Try: "}
"""Columns of sentences, which are too long for a cell: they stand below the row, where asked, each
after a word that says what it is."""
_PROSE_WIDTH: Final = 100


def _is_prose(frame: Frame, name: str) -> bool:
    return frame.level in SENTENCES and name in _PROSE


def _prose(frame: Frame, row: int, width: int, margin: str) -> list[str]:
    """The sentences of a row that the view asks for, below its line."""
    asked = {each.lstrip("+") for each in frame.view.columns}
    texts = (
        f"{label}{text}"
        for name, label in _PROSE.items()
        if name in asked and name in frame.values
        if (text := frame.values[name].cell(row))
    )
    room = (width or _PROSE_WIDTH) - len(margin)
    return [f"{margin}{line}" for text in texts for line in wrapped(text, room)]


def _group(frame: Frame, row: int) -> str:
    """The group of a sentence, in the default order."""
    groups = frame.values.get("group")
    return "" if groups is None or frame.sort else str(groups.cell(row) or "")


def _inks(frame: Frame, column: ColumnText) -> list[str]:
    if column.metric.name in BARS:
        return ["accent"] * len(frame)
    inks = INKS[column.metric.signed]
    return [inks[tint] for tint in tints(frame, column.metric).tolist()]


def _layout(
    frame: Frame,
    columns: Sequence[ColumnText],
    cells: Mapping[str, Sequence[str]],
    names: Sequence[str],
    width: int,
) -> tuple[Sequence[ColumnText], dict[str, int], int, int]:
    """The columns that are shown, the width of each and of names, and how many sparklines."""
    longest = max(map(cell_width, (*names, level_title(frame.level), _total_title(frame))))
    widths = {name: max(map(cell_width, texts)) for name, texts in cells.items()}
    sparks = 1 + len(frame.signals) if names and frame.sparks else 0
    shown = columns
    if width:
        parts = 2 if frame.level in SENTENCES else 3
        reserved = min(longest, max(_MIN_NAME, width // parts))
        room = width - reserved - sparks * (SPARK_BINS + 2)
        if frame.view.columns and not frame.view.added_columns:
            used = sum(each + 2 for each in widths.values())
            while sparks and used > width - reserved - sparks * (SPARK_BINS + 2):
                sparks -= 1
        else:
            # As in the explorer, the column that the rows are sorted by is always visible.
            by = frame.sort.removeprefix("-")
            first = {by, *frame.view.added_columns}
            ranked = sorted(columns, key=lambda column: column.metric.name not in first)
            needed = [widths[column.metric.name] for column in ranked]
            least = min(_MIN_WITH_SPARKS, len(needed))
            while sparks and fitting(needed, room, gap=2) < least:
                sparks -= 1
                room += SPARK_BINS + 2
            fit = fitting(needed, room, gap=2)
            shown = tuple(column for column in columns if column in ranked[: max(fit, 1)])
    used = sum(widths[column.metric.name] + 2 for column in shown)
    used += sparks * (SPARK_BINS + 2)
    name_width = min(longest, max(width - used, _MIN_NAME) if width else _MAX_NAME)
    return shown, widths, name_width, sparks


def as_markdown(frame: Frame, *, limit: int | None = None, drawn: Sequence[str] = ()) -> str:
    count = len(frame) if limit is None else min(limit, len(frame))
    are_words, (header, total, *body) = _plain_table(frame, count)
    rows = [header, [":--" if is_word else "--:" for is_word in are_words]]
    for row, cells in enumerate(body):
        own = zip(cells, are_words, strict=True)
        texts = [escaped(text) if is_word else text for text, is_word in own]
        if frame.level in SENTENCES:
            texts[0] += f" `{clean(frame.addresses(row))}`"
        rows.append(texts)
    if _has_total(frame):
        rows.append([f"**{total[0]}**", *total[1:]])
    lines = [
        f"**{escaped(_breadcrumb(frame, UNICODE))}**",
        "",
        *(f"{escaped(clean(line))}\n" for line in frame.headline),
        *(("```text", *drawn[:-1], "```", "") if drawn else ()),
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        *(f"- {escaped(clean(note))}" for note in (*frame.notes, *limit_notes(frame, count))),
    ]
    lines += ["", "```sh", show_command(frame.address, charted=_is_charted(frame, drawn)), "```"]
    return "\n".join(lines) + "\n"


def as_html(frame: Frame) -> str:
    from html import escape

    count = min(_HTML_ROWS, len(frame))
    lines = [
        f"<p><b>{escape(_breadcrumb(frame, UNICODE))}</b></p>",
        *(f"<p>{escape(clean(line))}</p>" for line in frame.headline),
        html_table(frame, count),
        *(f"<p>{escape(clean(note))}</p>" for note in (*frame.notes, *limit_notes(frame, count))),
        f"<p><code>{escape(show_command(frame.address))}</code></p>",
    ]
    return "\n".join(lines) + "\n"


def html_table(
    frame: Frame, count: int, begin: int = 0, end: int | None = None, room: int | None = None
) -> str:
    """Of the first `count` rows of a frame, whose names tell them apart, those from `begin` up to
    `end`; below the first ones the total.

    A share has a bar behind it, and a figure that stands out its ink and a sign; a long name gives
    way in its middle, and is whole where one points at it. A page may choose the colours with
    `--share`, `--warning`, `--alarm` and `--good`. In a `room` of so many
    characters, the first columns and that of the order are shown.
    """
    from html import escape

    metrics = [column.metric for column in column_texts(frame)]
    marks = [tints(frame, metric) for metric in metrics]

    def row(tag: str, cells: Sequence[str], place: int = -1) -> str:
        line = ""
        for at in (0, *shown):
            style, text = f"text-align:{'left' if are_words[at] else 'right'}", cells[at]
            if at and place >= 0:
                if names[at - 1] in BARS:
                    share = min(frame.values[names[at - 1]].at(place) or 0.0, 100.0)
                    style += ";min-width:8em"
                    style += f";background:{_HTML_BAR} 0 50%/{share:.1f}% 75% no-repeat"
                tint = Tint(marks[at - 1][place])
                if colour := _HTML_INKS.get(INKS[metrics[at - 1].signed][tint]):
                    style += f";font-weight:600;color:{colour}"
                    if not metrics[at - 1].signed:
                        text = sign_of(tint, UNICODE.up, UNICODE.down, UNICODE.best) + text
            whole = ""
            if not at and text in cut:
                whole, text = f' title="{escape(text)}"', cut[text]
            line += f"<{tag} style='{style}'{whole}>{escape(text)}</{tag}>"
        return f"<tr>{line}</tr>"

    are_words, (header, total, *body) = _plain_table(frame, count)
    names = [metric.name for metric in metrics]
    long = tuple(cells[0] for cells in body)
    fitting = zip(long, fitting_names(long, _HTML_NAME, UNICODE), strict=True)
    cut = {name: text for name, text in fitting if text != name}
    wide = [max(map(len, cells)) + _HTML_GAP for cells in zip(header, total, *body, strict=True)]
    wide[0] = min(wide[0], _HTML_NAME)
    ends = [sum(wide[: at + 1]) for at in range(len(header))]
    shown = [at for at in range(1, len(header)) if room is None or ends[at] <= room] or [1]
    shown = shown[: len(header) - 1]
    if (name := frame.sort.removeprefix("-")) in names[len(shown) :]:
        shown[-1] = names.index(name) + 1
    lines = [
        f"<table><thead>\n{row('th', header)}\n</thead><tbody>",
        *(row("td", cells, place) for place, cells in enumerate(body[begin:end], begin)),
        *([row("th", total)] if _has_total(frame) and not begin else ()),
        "</tbody></table>",
    ]
    return "\n".join(lines)


def _plain_table(frame: Frame, count: int) -> tuple[list[bool], list[list[str]]]:
    """Which columns have words; the cells of the header, the total and the rows."""
    columns = [*column_texts(frame)]
    names = (level_title(frame.level), _total_title(frame), *row_names(frame, UNICODE, count))
    cells = zip(names, *(_texts(frame, c, count, UNICODE) for c in columns), strict=True)
    return [True, *(column.is_word for column in columns)], [*map(list, cells)]


def show_command(address: str, *, charted: bool = False) -> str:
    return f"chopper show {shell_word(address)}" + " --chart" * charted


def shell_word(text: str) -> str:
    """A text as a word of a shell's command, which can be printed whatever is in it."""
    if clean(text) == text:
        return shlex.quote(text)
    # A shell reads the escapes of `$'…'`: what a terminal acts on is inert, and the same.
    given = text.encode("utf-8", "surrogateescape")
    inert = (chr(b) if b in range(32, 127) and b not in b"'\\" else f"\\x{b:02x}" for b in given)
    return f"$'{''.join(inert)}'"


def _is_charted(frame: Frame, drawn: Sequence[str]) -> bool:
    return bool(drawn) and not frame.view.name


def _texts(frame: Frame, column: ColumnText, count: int, glyphs: Glyphs) -> list[str]:
    """Header, total and the cells of a column, in this order."""
    name, total = column.metric.name, ""
    if not column.is_word:
        number = frame.total[name]
        mark = frame.total_mark(name) if number is not None else ""
        total = mark + column.scale.cell(number, glyphs.missing)
    cells = (column.cell(frame.values[name], row, glyphs) for row in range(count))
    return [column.header, total, *cells]


def _column(frame: Frame, column: ColumnText, count: int, glyphs: Glyphs) -> list[str]:
    """As `_texts`, with the mark of the sorted column and the bars of shares."""
    texts = _texts(frame, column, count, glyphs)
    if frame.sort.removeprefix("-") == column.metric.name:
        texts[0] += glyphs.order(frame.sort)
    if column.metric.name not in BARS:
        return texts
    values = frame.values[column.metric.name]
    bars = [bar((values.at(row) or 0) / 100, BAR_WIDTH, glyphs) for row in range(count)]
    header, *figures = texts
    padded = max(map(len, figures))
    drawn = zip(figures, (" " * BAR_WIDTH, *bars), strict=True)
    # The title is over the bars, too.
    return [header.rjust(padded), *(f"{text.rjust(padded)} {own}" for text, own in drawn)]


def _breadcrumb(frame: Frame, glyphs: Glyphs) -> str:
    steps = [clean(frame.view.run), *(crumb(level, label) for level, label in frame.view.scope)]
    steps += [title_of(frame.view)] if frame.view.name else []
    base, statistic = baseline_title(frame.view), statistic_title(frame)
    crumbs = f" {glyphs.crumb} ".join(steps)
    parts = (statistic or clean(frame.base), f"base {base}" if base else "")
    return "  ".join([crumbs, *filter(None, parts)])


def _total_title(frame: Frame) -> str:
    # A statistic of the scope is not a total.
    return "scope" if statistic_title(frame) else frame.total_title


def _headline(frame: Frame, width: int, paint: Paint) -> list[str]:
    lines = []
    for text in frame.headline:
        first, *others = wrapped(text, width or 100)
        fact, dot, rest = first.partition(BETWEEN_FACTS)
        lines += [f"{paint(fact, 'strong')}{dot}{rest}", *others]
    return [*lines, ""] if lines else []


def _has_total(frame: Frame) -> bool:
    return any(number is not None for number in frame.total.values())


def _footer(frame: Frame, count: int, drawn: Sequence[str]) -> list[str]:
    notes = [f"note: {clean(note)}" for note in (*frame.notes, *limit_notes(frame, count))]
    if len(frame) == 1:
        notes += [
            f"{clean(name)}: {clean(_shortened(attribute_text(value)))}"
            for name, value in frame.attributes(0).items()
        ]
    return [*notes, show_command(frame.address, charted=_is_charted(frame, drawn))]


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_ATTRIBUTE else f"{text[:_MAX_ATTRIBUTE]}… (all of it in JSON)"


def escaped(text: str) -> str:
    """Text with what Markdown and HTML would act on behind backslashes."""
    return "".join(f"\\{c}" if c in r"\`*_{}[]<>#|~" else c for c in text)
