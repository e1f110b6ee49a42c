"""`chopper cache`: the runs that are cached to open at once."""

from __future__ import annotations

from argparse import Namespace
from datetime import datetime
from typing import Final

from chopper_core.ingest import cache
from chopper_core.util.errors import UsageError
from chopper_core.util.escape import escape_each
from chopper_tui.commands.output import write

DESCRIPTION: Final = "List or clear the cached runs, which open at once."
_KEPT: Final = {
    "rows": f"rows of tables of runs (runs of up to {cache.SMALL_BYTES / 1000:.0f} kB have no "
    "store: they are quick to read)",
    "found": "lists of the runs in a directory",
    "nearby": "places next to a run's files that were searched, which the run depends on",
    "verified": "stores that were verified",
    "program": "versions of Chopper and its plugins",
    "derived": "answers of stores that can't be written",
    "screens": "first screens of the explorer",
}
OPTIONS: Final = """
    {list,clear}?=list | list them (default), or remove them
    --old | clear only those of other versions of Chopper"""


def run(options: Namespace) -> int:
    if options.old and options.do != "clear":
        raise UsageError("--old goes with clear: chopper cache clear --old")
    if options.do == "clear":
        count, size = cache.clear(old_only=options.old)
        write(escape_each([f"removed {count} run{'' if count == 1 else 's'}, {size / 1e6:.1f} MB"]))
        return 0
    kept, figures = cache.entries(), [*cache.kept_figures()]
    total = sum(entry.size_bytes for entry in kept) + sum(size for _, _, size in figures)
    lines = [
        *map(_of_run, kept),
        *(f"{size / 1e6:8.1f} MB  {number:,} {_KEPT[kind]}" for kind, number, size in figures),
        f"{total / 1e6:8.1f} MB  in {cache.directory().parent}; all takes at most "
        f"{cache.most_bytes() / 1e9:g} GB (CHOPPER_CACHE_GB), and what is unused for "
        f"{cache.MOST_DAYS} days goes",
    ]
    write(escape_each(lines))
    return 0


def _of_run(entry: cache.CacheEntry) -> str:
    """The line of a cached run, with what it is kept for."""
    used = datetime.fromtimestamp(entry.used_s).strftime("%Y-%m-%d %H:%M")
    if entry.is_old:
        why = "(of another version of Chopper)"
    elif entry.is_gone:
        why = "(its files are gone)"
    else:
        why = f"(with {', '.join(entry.derived)})" if entry.derived else ""
    read = f"{entry.name} read with {', '.join(entry.options)}" if entry.options else entry.name
    return f"{entry.size_bytes / 1e6:8.1f} MB  {used}  {f'{read} {why}'.strip()}"
