"""The commands: a module each, imported when given.

It has `DESCRIPTION`, `OPTIONS`, `run` and perhaps `EPILOG`, the end of its help.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Final

from chopper_core.util.plugins import declared

PROGRAM: Final = "chopper"
_EXTENSIONS: Final = declared("COMMANDS")
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "record": ("-- COMMAND", "run a training command and record some of its steps"),
    "live": ("", "the GPUs of this node as they are now"),
    "demo": ("", "explore the generated demo run"),
    "show": ("ADDRESS", "print a view as text, markdown, CSV or JSON"),
    "diff": ("A B [PATH]", "what changed from A to B, largest first"),
    "what-if": ("RUN [QUESTION…]", "the step time with a cause removed, by replay"),
    **{name: (takes, line) for name, (takes, line, _) in _EXTENSIONS.items()},
    "baseline": ("", "names for runs to compare with: @NAME"),
    "info": ("RUN", "sources, alignment, labels, and files left out"),
    "report": ("RUN", "one HTML page for a ticket: findings, tables, pictures"),
    "ingest": ("RUN -o D", "align a run once and write a store to keep or share"),
    "sql": ("RUN 'select …'", "ask the tables of a run in SQL"),
    "mcp": ("[RUN…]", "answer agents on standard input and output"),
    "skill": ("", "the guide for agents"),
    "export": (
        "RUN --to FORMAT -o PATH",
        "write a run for a simulator or another viewer",
    ),
    "cache": ("", "list cached runs; `cache clear` removes them"),
    "metrics": ("", "all metrics: unit, definition, source"),
    "keys": ("", "the keys of the explorer"),
    "doctor": ("", "terminal, settings and versions, for bug reports"),
}
"""Name → its arguments and its line in the help."""


def command_module(name: str) -> ModuleType:
    own = _EXTENSIONS.get(name)
    return import_module(own[2] if own else f"{__name__}.{name.replace('-', '_')}")
