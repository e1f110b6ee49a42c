"""The graph of a run in the language of Graphviz: a cluster per GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from chopper_core.extensions.chakra.drawing import TAKES as TAKES
from chopper_core.extensions.chakra.drawing import Drawing, Fields, drawing
from chopper_core.model.run import Run
from chopper_core.render.exports import ExportOptions, new_file
from chopper_core.util.escape import cut_text
from chopper_core.util.progress import Progress

DESCRIPTION: Final = "the graph of activities for Graphviz, one .dot file"
_MOST: Final = 1_000
"""Nodes; of more no layout can be read."""
_MAX_LABEL: Final = 40
_COLOURS: Final = {"compute": "#cfe2f3", "comm": "#f9cb9c", "copy": "#d9ead3", "host": "#eeeeee"}


def write(run: Run, path: Path, options: ExportOptions, progress: Progress) -> list[str]:
    progress("draw the graph", 0, 1)
    found = drawing(run, options, _MOST)
    with new_file(path) as fresh, fresh.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in _lines(found, run))
    return found.notes


def _lines(found: Drawing, run: Run) -> Iterator[str]:
    yield "digraph run {"
    yield f"  graph [{_list({'label': found.title, 'rankdir': 'LR'})}]"
    yield '  node [shape="box", style="filled", fontsize="10"]'
    for gpu in run.gpus:
        yield f"  subgraph cluster_{gpu.index} {{"
        yield f"    graph [{_list({'label': f'rank {gpu.rank}'})}]"
        for name, fields in found.nodes[gpu.index].items():
            yield f"    {name} [{_list(_shown(fields))}]"
        yield "  }"
    for source, target, kind in found.edges:
        yield f"  {source} -> {target} [{_list({'kind': kind})}]"
    together = {"dir": "both", "style": "dashed", "constraint": "false"}
    for one, other, kind in found.meetings:
        yield f"  {one} -> {other} [{_list({'kind': kind, **together})}]"
    yield "}"


def _shown(fields: Fields) -> Fields:
    text, lasts_us = str(fields["name"]), int(fields["duration_ns"]) / 1e3
    short = cut_text(text, _MAX_LABEL)
    shown = {"label": f"{short}\n{lasts_us:,.1f} µs", "fillcolor": _COLOURS[str(fields["type"])]}
    # Graphviz shows the whole name at the mouse; `name` is not an attribute that readers expect.
    return {
        **shown,
        "tooltip": text,
        **{key: each for key, each in fields.items() if key != "name"},
    }


def _list(values: Mapping[str, int | str]) -> str:
    return ", ".join(f"{name}={_quoted(str(value))}" for name, value in values.items())


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
