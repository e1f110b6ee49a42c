"""The person's own files: `config.toml`, what is kept between sessions, and those of crashes."""

from __future__ import annotations

import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, get_args, get_type_hints

import msgspec
from msgspec import Struct, field

from chopper_core.columns import metric_named
from chopper_core.model.table import ACTIVITY, LEVELS, KernelTable
from chopper_core.util.atomic import make_private, publish, read_small, user_folder
from chopper_core.util.errors import ChopperError, DataError, UsageError
from chopper_core.util.escape import escape_each
from chopper_tui.keymap import FIXED_KEYS, Action, is_key

CHART_SIZES: Final = ("small", "full", "off")
_COLUMN_LEVELS: Final = (*LEVELS, ACTIVITY)


class ExplorerSection(Struct, frozen=True):
    """The section of defaults."""

    theme: Literal[
        "", "dark", "light", "contrast", "ansi",
        "dracula", "nord", "gruvbox", "catppuccin", "solarized",
    ] = ""  # fmt: skip
    background: bool = False
    """Whether the theme's background is painted, in place of the terminal's own."""
    glyphs: Literal["auto", "unicode", "ascii"] = "auto"
    chart: Literal["", "small", "full", "off"] = ""
    mouse: bool = True
    full_names: bool = False


class Config(ExplorerSection, frozen=True):
    """A person's settings of the explorer, with its defaults."""

    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Level → names of metrics."""
    actions: tuple[Action, ...] = ()
    """All actions with the person's keys; none where no key is changed."""
    warnings: tuple[str, ...] = ()
    splits: Mapping[str, int] = field(default_factory=dict)
    """View → lines by which the line between its pictures and its table is moved."""
    remember: bool = False
    """Whether chosen columns are saved for the next session."""
    is_first: bool = False


DEFAULTS: Final = Config()


def state_directory() -> Path:
    return user_folder("XDG_STATE_HOME", "~/.local/state")


def config_path() -> Path:
    return user_folder("XDG_CONFIG_HOME", "~/.config") / "config.toml"


def read_config(actions: Callable[[], Sequence[Action]], path: Path | None = None) -> Config:
    """The settings of a file, or the defaults where there is none; raises UsageError.

    `actions` loads the registry: importing it takes time, and few settings change a key.
    """
    path = path or config_path()
    try:
        text = read_small(path).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return Config()
    except PermissionError:  # the home of another user, kept by sudo
        return Config(warnings=(f"{path} can't be read: permission denied; defaults are used",))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} can't be read: {reason}") from error
    # Most have no such file.
    import tomllib

    try:
        document = tomllib.loads(text)
        found = msgspec.convert(document, ConfigFile)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is invalid TOML: {error}") from error
    except msgspec.ValidationError as error:
        what, _, where = str(error).replace("`object`", "a section").partition(" - at `$.")
        where = where.removesuffix("`")
        allowed = _CHOICES.get(where.removeprefix("explorer."), ())
        hint = f"; choose from {', '.join(allowed)}" if allowed else ""
        raise UsageError(f"{path}: {where}: {what[0].lower()}{what[1:]}{hint}") from error
    explorer = document.get("explorer", {})
    warnings = list(_unknown("", document, _SECTIONS, "section"))
    warnings += _unknown("explorer.", explorer, ExplorerSection.__struct_fields__, "setting")
    warnings += _unknown("columns.", found.columns, _COLUMN_LEVELS, "level")
    own = actions() if found.keys else ()
    warnings += _unknown("keys.", found.keys, [each.verb for each in own], "command")
    try:
        return Config(
            **msgspec.structs.asdict(found.explorer),
            columns=_checked_columns(found.columns),
            actions=_with_keys(own, found.keys),
            warnings=tuple(f"{path}: {warning}" for warning in warnings),
        )
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


class ConfigFile(Struct, frozen=True):
    """The sections of the file."""

    explorer: ExplorerSection = ExplorerSection()
    columns: dict[str, str | list[str]] = {}
    keys: dict[str, str | list[str]] = {}


_SECTIONS: Final = ConfigFile.__struct_fields__
_CHOICES: Final = {
    name: tuple(filter(None, get_args(kind)))
    for name, kind in get_type_hints(ExplorerSection).items()
}


def _unknown(where: str, given: Iterable[str], known: Sequence[str], what: str) -> Iterator[str]:
    for name in given:
        if name not in known:
            shown = known if what != "command" else ("those of `chopper keys`",)
            yield f"unknown {what} {where + name!r}; expected {', '.join(shown)}"


def _texts(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _checked_columns(given: Mapping[str, str | list[str]]) -> dict[str, tuple[str, ...]]:
    from chopper_core.columns import METRICS
    from chopper_core.model.column_names import is_counter

    columns = {level: _texts(each) for level, each in given.items() if level in _COLUMN_LEVELS}
    for level, names in columns.items():
        for name in names:
            if name not in METRICS and not is_counter(name):
                raise UsageError(
                    f"columns.{level} has the unknown column {name!r}; `chopper metrics` lists all"
                )
    return columns


def _with_keys(
    actions: Sequence[Action], given: Mapping[str, str | list[str]]
) -> tuple[Action, ...]:
    verbs = {action.verb for action in actions}
    chosen = {verb: _texts(each) for verb, each in given.items() if verb in verbs}
    owners: dict[str, str] = {}
    for verb, keys in chosen.items():
        for key in keys:
            if not is_key(key):
                raise UsageError(f"keys.{verb} has the invalid key {key!r}")
            if key in FIXED_KEYS:
                raise UsageError(f"keys.{verb} has {key}, which can't be reassigned")
            if key in owners:
                raise UsageError(f"keys.{verb} has {key!r}, which keys.{owners[key]} has too")
            owners[key] = verb
    if not chosen:
        return ()
    return tuple(action.with_keys(chosen.get(action.verb), owners) for action in actions)


class _Saved(Struct, frozen=True):
    """State saved between sessions, each part in its own file."""

    schema: str = ""
    columns: dict[str, tuple[str, ...]] = {}
    splits: dict[str, int] = {}


def state_path(name: str) -> Path:
    """The path of the saved `columns`, or of the `layout`: lines between pictures and tables."""
    return state_directory() / f"{name}.json"


def _saved(name: str) -> _Saved:
    try:
        kept = msgspec.json.decode(read_small(state_path(name)), type=_Saved)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return _Saved()
    return kept if kept.schema == f"chopper.{name}/1" else _Saved()


def saved_columns() -> dict[str, tuple[str, ...]]:
    known = _saved("columns").columns
    return {level: known[level] for level in _COLUMN_LEVELS if level in known}


def saved_splits() -> dict[str, int]:
    return _saved("layout").splits


def save_splits(splits: Mapping[str, int]) -> None:
    _save("layout", splits={name: lines for name, lines in splits.items() if lines})


def save_columns(level: str, names: tuple[str, ...]) -> None:
    columns = {**saved_columns(), level: names}
    _save("columns", columns={level: names for level, names in columns.items() if names})


def _save(name: str, **kept: object) -> None:
    path = state_path(name)
    try:
        make_private(path.parent)
        text = msgspec.json.encode({"schema": f"chopper.{name}/1", **kept})
        publish(path, msgspec.json.format(text, indent=1), mode=0o600)
    except OSError as error:
        raise DataError(f"the {name} can't be saved in {path}: {error.strerror}") from error


def is_first_start() -> bool:
    """Whether the explorer was never started before; from now on it was."""
    path = state_directory() / "started"
    try:
        make_private(path.parent)
        path.touch(exist_ok=False)
    except OSError:
        return False
    return True


def fitting_columns(
    columns: Mapping[str, tuple[str, ...]], table: KernelTable
) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for level, names in columns.items():
        for name in names:
            with suppress(ChopperError):
                metric_named(name, table)
                found[level] = (*found.get(level, ()), name)
    return found


_MAX_FILES: Final = 20
_REPEATED: Final = "chopper ADDRESS --play FILE repeats the keys"


def write_crash(crash: BaseException, address: str = "", keys: Iterable[str] = ()) -> Path | None:
    folder = state_directory()
    path = folder / f"crash-{datetime.now():%Y%m%d-%H%M%S.%f}-{os.getpid()}.log"
    notes = [
        f"{crash_summary(crash)}",
        f"Python {platform.python_version()}, {sys.platform}",
        *([f"address: {address}", _REPEATED] if address else []),
        *"".join(traceback.format_exception(crash)).splitlines(),
    ]
    text = escape_each(f"# {line}" for line in notes)
    try:
        make_private(folder)
        publish(path, (text + "".join(f"{key}\n" for key in keys)).encode(), mode=0o600)
        for old in sorted(folder.glob("crash-*.log"))[:-_MAX_FILES]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return path


def typed_setting(text: str) -> str:
    return f"text {json.dumps(text)}"


def crash_summary(crash: BaseException) -> str:
    return f"{type(crash).__name__}: {crash}".splitlines()[0][:200]
