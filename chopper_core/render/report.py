"""A run as one HTML page for a ticket: what is wrong, the evidence, and how to get it again.

The page needs no script and no network, is light or dark as its reader is, and prints. All that a
file says passes through `clean` and `escape`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.address import parse, render
from chopper_core.model.phrases import BETWEEN_FACTS, count, percent
from chopper_core.model.run import Run
from chopper_core.model.units import time_text, utc_text
from chopper_core.model.view import View, complete_order
from chopper_core.render import info
from chopper_core.render.drawing import Piece, picture
from chopper_core.render.exchange import limit_notes
from chopper_core.render.text import html_table, shell_word, show_command
from chopper_core.util.errors import ChopperError
from chopper_core.util.escape import Escaped, clean, escape_lines
from chopper_core.util.progress import Progress, silent
from chopper_core.views.frame import Frame
from chopper_core.views.query import query

Draw = Callable[[Frame], Sequence[Sequence[Piece]]]
"""The pictures of a frame as lines of text in inks."""
Style = Callable[[str], tuple[str, str]]
"""The colours of an ink and of what is behind it, as CSS; empty for those of the page."""

_ROWS: Final = 20
"""Rows of a table; more are folded away."""
_MAX_ROWS: Final = 200
_ROOM: Final = 118
"""Characters of a row of a table that fit the page."""
_EVIDENCE: Final = 5
"""Findings whose evidence is in the page."""
_EVIDENCE_ROWS: Final = 8
_MAX_BYTES: Final = 2_000_000


_PART: Final = ' class="part"'
_DIM: Final = ' class="dim"'


class Look(Struct, frozen=True):
    """How pictures are drawn, by who knows the screen's."""

    draw: Draw
    light: Style
    dark: Style


class Section(Struct, frozen=True):
    """A question, and the view that answers it."""

    title: str
    view: str
    by: str = ""
    is_of_worst_step: bool = False
    """Whether it is of the slowest step alone, where the run has several."""


SECTIONS: Final = (
    Section("Summary", "overview"),
    Section("Findings", "findings"),
    Section("What if", "whatif"),
    Section("Slowest step", "timeline", is_of_worst_step=True),
    Section("Operations", "", "operation"),
    Section("Kernels", "kernels"),
    Section("Losses of compute", "overheads"),
    Section("Roofline", "roofline"),
    Section("GPUs", "ranks"),
    Section("Communication", "comms"),
    Section("Power and heat", "power"),
    Section("Comparison", "compare"),
)

_STYLE: Final = """
:root{color-scheme:light dark;--page:#fff;--text:#24292f;--strong:#000;--dim:#59636e;--line:#c8d1da;
--bar:#2f90e9;--share:#b9dcf8;--warning:#a16700;--alarm:#b70100;--good:#026c75}
body{background:var(--page);color:var(--text);font:14px/1.45 system-ui,sans-serif;
max-width:1080px;margin:0 auto;padding:16px;overflow-wrap:anywhere}
h1,h2{color:var(--strong);line-height:1.2}h1{font-size:22px}h2{font-size:17px;margin:32px 0 8px;
border-bottom:1px solid var(--line);padding-bottom:4px}
nav a{margin-right:12px;display:inline-block}a{color:inherit}p{margin:6px 0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 14px;margin:10px 0}
dt{color:var(--dim)}dd{margin:0;color:var(--strong)}dd.dim{color:var(--dim)}
.head{font-size:16px;color:var(--strong)}.dim,.note{color:var(--dim)}
.wide{overflow-x:auto;margin:10px 0}svg{max-width:100%;height:auto;display:block}
svg{fill:var(--strong)}
svg text{font:13px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:var(--text);
white-space:pre}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:2px 10px 4px 0;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--dim);font-weight:600}tfoot th{color:var(--strong)}
code,pre{font:12px ui-monospace,Menlo,Consolas,monospace}pre{overflow-x:auto}
summary{cursor:pointer;color:var(--dim)}ol.findings>li{margin:10px 0}
li.part{list-style:'└ ';margin-left:20px;counter-increment:list-item 0}
li i{display:inline-block;height:12px;margin-right:8px;vertical-align:-1px;background:var(--bar)}
@media(max-width:700px){body{padding:10px;font-size:15px}svg{max-width:none}
dl{grid-template-columns:1fr}dd{margin-bottom:6px}ol,ul{padding-left:22px}
th:first-child,td:first-child{position:sticky;left:0;background:var(--page);min-width:100px;
max-width:150px;white-space:normal;overflow-wrap:anywhere}}
@media print{:root{color-scheme:light}body{max-width:none;padding:0;print-color-adjust:exact;
-webkit-print-color-adjust:exact}.wide{overflow:visible}svg{max-width:100%}
table{font-size:9px}td,th{padding-right:6px}h2,h3,.head,li>code{break-after:avoid}
tr,svg,li,dl{break-inside:avoid}nav,details:not([open]),summary{display:none}}
"""
_DARK: Final = """@media screen and (prefers-color-scheme:dark){:root{--page:#0d1117;--text:#c9d1d9;
--strong:#f5f8fb;--dim:#848d97;--line:#39424d;--bar:#5f95e4;--share:#1f4a7a;--warning:#f7b800;--alarm:#e94a4e;
--good:#45bed6}"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def report(run: Run, view: View, look: Look, version: str, progress: Progress = silent) -> Escaped:
    """The page of a run, or of the part that the path of a view chooses."""
    classes: dict[str, str] = {}
    frames, missing = [], []
    for done, section in enumerate(SECTIONS):
        progress(section.title, done, len(SECTIONS))
        if section.view == "compare" and view.baseline is None:
            continue
        try:
            asked = worst_step(run, view) if section.is_of_worst_step else view
            frame = query(run, replace(asked, name=section.view, by=section.by))
        except ChopperError as error:
            missing.append(f"{section.title}: {error}")
            continue
        if section.is_of_worst_step:
            step = dict(asked.scope).get("iteration")
            named = f"{section.title}: {step}" if step is not None else "Timeline"
            section = replace(section, title=named)
        if frame.labels or frame.charts or frame.headline:
            frames.append((section, frame))
    of_all = [
        note
        for note in (frames[0][1].notes if frames else ())
        if all(note in frame.notes for _, frame in frames)
    ]
    parts = [
        (section.title, "".join(_section(run, section, frame, of_all, look, classes)))
        for section, frame in frames
    ]
    if missing:
        parts.append(("Not known", _list(missing)))
    parts.append(("Sources", "".join(_sources(run, view))))
    style = "".join((_STYLE, _rules(classes, look.light), _DARK, _rules(classes, look.dark), "}"))
    title = [clean(run.name), *of_all]
    head = {**head_facts(run), "written by": f"Chopper {version}"}
    return escape_lines(_page(title, head, parts, style))


def worst_step(run: Run, view: View) -> View:
    """The slowest complete step of a view's scope; the scope where it has no two of them."""
    order = complete_order(("iteration",))
    if "iteration" in dict(view.scope):
        return view
    asked = View(view.run, order=order, columns=("elapsed_ns",), overrides=view.overrides)
    steps = query(run, asked)
    counted = np.flatnonzero(steps.counted())
    known = [row for row in counted.tolist() if steps.labels[row].isdigit()]
    if len(known) < 2:
        return view
    row = max(known, key=lambda each: steps.values["elapsed_ns"].at(each) or 0.0)
    gpus = [label for level, label in view.scope if level == "gpu"]
    of_gpu = complete_order(("iteration", "gpu")) if gpus else order
    path = (steps.labels[row], *gpus)
    return replace(view, path=path, order=of_gpu, baseline=None)


_UNKNOWN: Final = "not in the files"


def head_facts(run: Run) -> dict[str, str]:
    """When and where a run was made, by which job, command and revision, and what its data lacks:
    texts by their names."""
    facts = {name: text for each in run.recordings for name, text in each.facts.items()}
    hosts = [host for each in run.recordings for host in each.hosts]
    hosts += [each.host for each in run.sources if each.host]
    jobs = dict.fromkeys(each.job for each in run.recordings if each.job)
    ranks = len(run.ranks)
    doubts = [doubt.note for doubt in run.doubts]
    lacks = [*doubts, *info.missing_of(run)]
    known = f"{ranks} of {count(max(run.world, ranks), 'rank')}, {count(len(run.gpus), 'GPU')}"
    return {
        "date": facts.get("started") or _date(run) or _UNKNOWN,
        "host": ", ".join(dict.fromkeys(hosts)) or _UNKNOWN,
        "job": ", ".join(jobs) or _UNKNOWN,
        "command": facts.get("command") or _UNKNOWN,
        "commit": facts.get("revision") or _UNKNOWN,
        "quality": "; ".join([known, *(lacks or ["nothing in doubt"])]),
    }


def _date(run: Run) -> str:
    """When the first activity started, where the clock of the files counts from an epoch."""
    if not _EPOCHS_NS[0] < run.origin_ns < _EPOCHS_NS[1] or run.is_sampled_only:
        return ""
    return utc_text(run.origin_ns)


_EPOCHS_NS: Final = (946_684_800 * 10**9, 4_102_444_800 * 10**9)
"""The years 2000 and 2100: other clocks count from a start."""


def _page(
    title: Sequence[str],
    head_of_run: Mapping[str, str],
    parts: Sequence[tuple[str, str]],
    style: str,
) -> str:
    name, *lines = (escape(clean(line)) for line in title)
    facts = "".join(
        f"<dt>{escape(key)}</dt><dd{_DIM if text == _UNKNOWN else ''}>{escape(clean(text))}</dd>"
        for key, text in head_of_run.items()
    )
    links = "".join(f'<a href="#s{n}">{escape(title)}</a>' for n, (title, _) in enumerate(parts))
    sections = [
        f'<section id="s{n}"><h2>{escape(title)}</h2>\n{body}</section>\n'
        for n, (title, body) in enumerate(parts)
    ]
    head = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>Chopper: {name}</title>\n<style>{style}</style></head>\n<body>\n"
        f'<header><h1>{name}</h1><p class="note">{"<br>".join(lines)}</p><dl>{facts}</dl>'
        f"<nav>{links}</nav></header>\n"
    )
    kept: list[str] = []
    dropped: list[str] = []
    size = len(head.encode())
    for (title, _), section in zip(parts, sections, strict=True):
        size += len(section.encode())
        kept += [section] if size <= _MAX_BYTES else []
        dropped += [title] if size > _MAX_BYTES else []
    note = f'<p class="note">a page of 2 MB has no room for: {escape(", ".join(dropped))}</p>\n'
    return "".join((head, *kept, note if dropped else "", "</body></html>\n"))


def _rules(classes: Mapping[str, str], style: Style) -> str:
    rules = []
    for ink, name in classes.items():
        front, back = style(ink)
        rules += [f"svg .{name}{{fill:{front}}}"] if front else []
        rules += [f"svg .{name}b{{fill:{back}}}"] if back else []
    return "".join(rules)


def _section(
    run: Run,
    section: Section,
    frame: Frame,
    of_all: Sequence[str],
    look: Look,
    classes: dict[str, str],
) -> Iterator[str]:
    lines = [clean(line) for line in frame.headline]
    for line in lines:
        first, dot, rest = escape(line).partition(BETWEEN_FACTS)
        yield f'<p class="head"><b>{first}</b>{dot}{rest}</p>\n'
    if frame.charts:
        drawn = picture(look.draw(frame), classes, lambda ink: bool(look.light(ink)[1]))
        yield f'<div class="wide">{drawn}</div>\n'
    if section.view == "findings":
        yield from _findings(run, frame)
    elif frame.labels:
        yield from _table(frame, _MAX_ROWS)
    notes = [note for note in frame.notes if note not in of_all]
    notes += limit_notes(frame, min(_MAX_ROWS, len(frame)))
    yield "".join(f'<p class="note">{escape(clean(note))}</p>\n' for note in notes)
    yield f"<p><code>{escape(show_command(frame.address))}</code></p>\n"


def _table(frame: Frame, most: int, shown: int = _ROWS) -> Iterator[str]:
    every = min(most, len(frame))
    yield f'<div class="wide">{html_table(frame, every, 0, shown, _ROOM)}</div>\n'
    if every > shown:
        more = html_table(frame, every, shown, None, _ROOM)
        yield f'<details><summary>{every - shown} more rows</summary><div class="wide">{more}'
        yield "</div></details>\n"


def _findings(run: Run, frame: Frame) -> Iterator[str]:
    yield '<ol class="findings">'
    for row in range(min(len(frame), _MAX_ROWS)):
        address = frame.addresses(row)
        figures = frame.row(row)
        if figures.get("group") != (frame.row(row - 1).get("group") if row else None):
            yield f'</ol>\n<h3>{escape(str(figures.get("group")))}</h3>\n<ol class="findings">'
        yield f"<li{_PART if figures.get('part_of') else ''}>{_worth(frame, row)}"
        yield f"<b>{escape(clean(frame.labels[row]))}</b><br>"
        yield f"{escape(clean(str(figures.get('detail') or '')))}"
        if figures.get("advice"):
            yield f"<br><em>Try:</em> {escape(clean(str(figures['advice'])))}"
        yield f"<br><code>{escape(show_command(address))}</code>"
        if row < _EVIDENCE:
            try:
                evidence = query(run, parse(address))
            except ChopperError:
                evidence = None
            if evidence is not None and evidence.labels:
                yield "<details open><summary>evidence</summary>"
                yield from _table(evidence, _EVIDENCE_ROWS, _EVIDENCE_ROWS)
                yield "</details>"
        yield "</li>\n"
    yield "</ol>\n"


def _worth(frame: Frame, row: int) -> str:
    """What a finding costs and saves, with its share and range."""
    figures, parts = frame.row(row), []
    cost, saving, share, low, high = (
        figures.get(name)
        for name in ("cost_ns", "saving_ns", "saving_pct", "saving_low_ns", "saving_high_ns")
    )
    if isinstance(cost, int | float):
        whose = figures.get("cost_of")
        parts.append(f"costs {time_text(cost)}{f' ({escape(str(whose))})' if whose else ''}")
    if isinstance(saving, int | float) and isinstance(share, int | float):
        bar = f'<i style="width:{max(2 * min(share, 100.0), 2.0):.1f}px"></i>' if share > 0 else ""
        bound = "≤" if frame.values["saving_ns"].is_bound(row) else ""
        of_step = escape(percent(share / 100))
        parts.append(f"{bar}saves <b>{bound}{time_text(saving)}</b>, {of_step}")
    if isinstance(low, int | float) and isinstance(high, int | float):
        parts[-1] += f' <span class="dim">({time_text(low)} to {time_text(high)})</span>'
    return f"{'; '.join(parts)}: " if parts else ""


def _sources(run: Run, view: View) -> Iterator[str]:
    opened = shell_word(render(view))
    yield f"<p><code>chopper {escape(opened)}</code> opens this run; "
    yield f"<code>chopper report {escape(opened)}</code> writes this page.</p>\n"
    described = escape(info.info_text(run), quote=False)
    yield "<details><summary>sources, alignment, labels</summary>"
    yield f"<pre>{described}</pre></details>\n"


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(clean(line))}</li>' for line in lines)}</ul>\n"
