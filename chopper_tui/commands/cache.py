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
    kept = cache.entries()
    lines = []
    for entry in kept:
        used = datetime.fromtimestamp(entry.used_s).strftime("%Y-%m-%d %H:%M")
        name = " ".join([entry.name, "(of another version of Chopper)" * entry.is_old]).strip()
        lines.append(f"{entry.size_bytes / 1e6:8.1f} MB  {used}  {name}")
    total = sum(entry.size_bytes for entry in kept)
    write(escape_each([*lines, f"{total / 1e6:8.1f} MB  in {cache.directory()}"]))
    return 0
