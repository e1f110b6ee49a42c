"""The files of the ranks for people: a line each, and what is true of them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chopper_core.render.cells import clean
from chopper_core.render.info.numbers import aligned, numbers_text

Document = Mapping[str, Any]


def source_lines(sources: Sequence[Document]) -> list[str]:
    """What became of each file; counts that differ between ranks with the ends of their range."""
    titles = ("rank", "MB", "events", "used", "file")
    rows = [
        (
            str(source["rank"]),
            f"{source['size_bytes'] / 1e6:.1f}",
            str(_events(source)),
            str(_events(source) - sum(source["unused_events"].values())),
            clean(source["path"]),
        )
        for source in sources
    ]
    lines = ["", "sources", *aligned((titles, *rows), words=1)]
    lines += _said(sources, "rank from", lambda source: source["rank_from"])
    lines += _said(sources, "clock", lambda source: source["clock"])
    lines += _said(sources, "", _facts)
    several = len(sources) > 1
    for title, key in (("not used", "unused_events"), ("found", "findings")):
        if counts := _counts(sources, key):
            lines.append(f"  {title}{', in each rank' if several else ''}")
            lines += [f"    {line}" for line in counts]
    lines += [
        f"  LOST in {clean(source['path'])}: {clean(note)}"
        for source in sources
        for note in source["losses"]
    ]
    return lines


def _events(source: Document) -> int:
    return sum(source["events"].values())


def _facts(source: Document) -> str:
    return ", ".join(f"{key} {value}" for key, value in source["facts"].items())


def _said(sources: Sequence[Document], title: str, what: Callable[[Document], str]) -> list[str]:
    """What files say, once for all that say the same."""
    ranks: dict[str, list[int]] = {}
    for source in sources:
        ranks.setdefault(what(source), []).append(source["rank"])
    return [
        f"  {f'{title}: ' if title else ''}{clean(said)}"
        + (f" (rank {numbers_text(sorted(those))})" if len(ranks) > 1 else "")
        for said, those in ranks.items()
        if said
    ]


def _counts(sources: Sequence[Document], key: str) -> list[str]:
    """Each count by its name, the largest first; least and most where the ranks differ."""
    names = dict.fromkeys(name for source in sources for name in source[key])
    found = []
    for name in names:
        counts = [(source[key].get(name, 0), source["rank"]) for source in sources]
        least, most = min(counts), max(counts, key=lambda pair: (pair[0], -pair[1]))
        if not most[0]:
            continue
        count = str(most[0])
        if least[0] < most[0]:
            count = f"{least[0]} (rank {least[1]}) to {most[0]} (rank {most[1]})"
        found.append((most[0], f"{count} {clean(name) or 'without category'}"))
    return [line for _, line in sorted(found, key=lambda pair: -pair[0])]
