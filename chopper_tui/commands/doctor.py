"""`chopper doctor`: terminal, locale, settings and versions, for bug reports."""

from __future__ import annotations

import locale
import os
import platform
import shutil
import sys
from argparse import Namespace
from typing import Final

from chopper_core.util.errors import ChopperError
from chopper_core.util.escape import escape_lines
from chopper_core.util.plugins import package_version
from chopper_tui import __version__
from chopper_tui.commands.output import write

PACKAGES: Final = (
    "textual", "rich", "plotext", "numpy", "pyarrow", "pandas", "msgspec", "isal",
)  # fmt: skip
VARIABLES: Final = (
    "TERM", "COLORTERM", "NO_COLOR", "LANG", "LC_ALL", "LC_CTYPE", "TMUX", "STY",
    "SSH_CONNECTION", "COLUMNS", "LINES", "XDG_CACHE_HOME", "XDG_STATE_HOME",
    "XDG_CONFIG_HOME",
)  # fmt: skip


DESCRIPTION: Final = "Versions, terminal and settings, for bug reports."
OPTIONS: Final = ""


def run(options: Namespace) -> int:
    write(escape_lines(doctor_report()))
    return 0


def doctor_report() -> str:
    from chopper_tui.config import saved_columns, state_directory, state_path
    from chopper_tui.terminal import can_draw, glyphs_of

    size = shutil.get_terminal_size((0, 0))
    logs = sorted(state_directory().glob("crash-*.log"))
    levels, columns_file = ", ".join(saved_columns()), state_path("columns")
    facts = [
        ("chopper", __version__),
        ("python", f"{platform.python_version()} ({platform.python_implementation()})"),
        ("system", platform.platform()),
        ("processors", str(os.cpu_count())),
        ("explorer", can_draw() or "can be drawn here"),
        ("terminal size", f"{size.columns}x{size.lines}" if size.columns else "unknown"),
        ("stdin, stdout", ", ".join(map(_tty, (sys.stdin, sys.stdout)))),
        ("colours", _colours()),
        ("characters", glyphs_of(sys.stderr).name),
        ("settings", _settings()),
        (
            "saved columns",
            f"of {levels}, in {columns_file}" if levels else f"none; {columns_file} has them",
        ),
        ("cache", _cache()),
        ("crashes", f"{len(logs)}, the last one in {logs[-1]}" if logs else "none logged"),
        ("encoding", f"{sys.stdout.encoding}, locale {_locale()}"),
        *((name, os.environ[name]) for name in VARIABLES if name in os.environ),
        *((package, version_of(package)) for package in PACKAGES),
    ]
    width = max(len(name) for name, _ in facts)
    return "".join(f"{name:<{width}}  {value}\n" for name, value in facts)


def _locale() -> str:
    try:
        return locale.setlocale(locale.LC_CTYPE, "")
    except locale.Error:
        wanted = next(name for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name))
        return f"{wanted}={os.environ[wanted]} is not installed"


def _settings() -> str:
    from chopper_tui.commands.output import registry
    from chopper_tui.config import config_path, read_config

    path = config_path()
    if not os.path.exists(path):
        return f"none; {path} would be used"
    try:
        config = read_config(registry, path)
    except ChopperError as error:
        return f"not used: {error}"
    warnings_text = "".join(f"; {warning.removeprefix(f'{path}: ')}" for warning in config.warnings)
    return f"{path} is used{warnings_text}"


def _colours() -> str:
    if os.environ.get("NO_COLOR"):
        return "none, by NO_COLOR"
    from rich.console import Console

    system = Console(stderr=True, force_terminal=True).color_system
    return {None: "none", "standard": "16", "256": "256", "truecolor": "16 million"}[system]


def _cache() -> str:
    from chopper_core.ingest import cache

    folder = cache.directory()
    above = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not os.access(above, os.W_OK):
        return f"none; {above} can't be written to"
    try:
        kept = cache.entries()
    except OSError as error:
        return f"{folder} can't be read: {error.strerror}"
    megabytes = sum(entry.size_bytes for entry in kept) / 1e6
    runs = f"{len(kept)} run{'' if len(kept) == 1 else 's'}, {megabytes:.1f} MB"
    old = sum(entry.is_old for entry in kept)
    return f"{runs} in {folder}" + (f"; {old} of another version" if old else "")


def _tty(stream: object) -> str:
    isatty = getattr(stream, "isatty", None)
    return "terminal" if isatty is not None and isatty() else "no terminal"


def version_of(package: str) -> str:
    return package_version(package) or "not installed"
