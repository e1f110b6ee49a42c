"""The commands: a module each, with `DESCRIPTION`, `add_options` and `run`; imported when given."""

from __future__ import annotations

from typing import Final

PROGRAM: Final = "chopper"
COMMANDS: Final = (
    "demo", "show", "diff", "baseline", "runs", "info", "ingest", "export", "check", "cache",
    "metrics", "keys", "doctor",
)  # fmt: skip
