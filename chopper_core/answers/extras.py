"""Packages that only some commands need: imported when they are, or named with how to get them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from chopper_core.util.errors import UsageError


def extra(module: str, needed_by: str, name: str) -> Any:
    """A module of an optional dependency; raises UsageError with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{needed_by} needs a package that isn't installed: pip install 'chopper-tui[{name}]'"
        ) from error
