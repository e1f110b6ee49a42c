"""Named baselines: `@main` can replace a run anywhere; with several runs, it is the first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from chopper_core.model.address import nothing_at
from chopper_core.util.atomic import make_private, publish, read_small, user_folder
from chopper_core.util.errors import DataError, UsageError

SIGN: Final = "@"


def baselines_path() -> Path:
    """The file of names and paths: `$XDG_STATE_HOME/chopper/baselines.json`."""
    return user_folder("XDG_STATE_HOME", "~/.local/state") / "baselines.json"


def baselines() -> dict[str, tuple[str, ...]]:
    """The named baselines: name → absolute paths of runs with the same settings."""
    # msgspec takes no names of other bytes than UTF-8; opening a store imports this module.
    import json

    try:
        found = json.loads(read_small(baselines_path()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{baselines_path()} can't be read: {reason}") from error
    if not isinstance(found, dict):
        return {}
    return {
        str(name): tuple(map(str, paths)) if isinstance(paths, list) else (str(paths),)
        for name, paths in found.items()
        if paths
    }


def set_baseline(name: str, *runs: str) -> tuple[str, ...]:
    """Give a run, or several with the same settings, a name; returns their paths.

    Raises UsageError, DataError.
    """
    if not name.replace("-", "_").replace(".", "_").isidentifier():
        raise UsageError(f"{name!r} isn't a baseline's name: use letters, digits, - . and _")
    paths = [Path(os.path.expanduser(each)) for run in runs for each in named_runs(run)]
    for path in paths:
        if not path.exists():
            raise nothing_at(path)
    found = tuple(dict.fromkeys(str(path.absolute()) for path in paths))
    _write({**baselines(), name: found})
    return found


def remove_baseline(name: str) -> None:
    """Forget a name; raises UsageError for an unknown one."""
    found = baselines()
    if name not in found:
        raise UsageError(_unknown(name, found))
    del found[name]
    _write(found)


def named_run(name: str) -> str:
    """Resolve a name to a run: `@main`, or the path itself; raises UsageError."""
    return named_runs(name)[0]


def named_runs(name: str) -> tuple[str, ...]:
    """Resolve a name to its runs; raises UsageError."""
    if not name.startswith(SIGN) or os.path.exists(name):
        return (name,)
    found = baselines()
    if name[1:] not in found:
        raise UsageError(_unknown(name[1:], found))
    return found[name[1:]]


def _unknown(name: str, found: dict[str, tuple[str, ...]]) -> str:
    known = f"known baselines: {', '.join(found)}" if found else "there are no named baselines yet"
    return f"unknown baseline {name!r}; {known}; `chopper baseline set {name} RUN` names one"


def _write(found: dict[str, tuple[str, ...]]) -> None:
    import json

    path = baselines_path()
    try:
        make_private(path.parent)
        publish(path, json.dumps(found, indent=1).encode() + b"\n", mode=0o600)
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror}") from error
