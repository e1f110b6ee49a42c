"""The person's own settings: `config.toml` with keys, defaults of the explorer and columns."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from chopper_core.metrics import metric_named
from chopper_core.model.table import ACTIVITY, LEVELS, KernelTable
from chopper_core.util.atomic import make_private, publish, read_small, user_folder
from chopper_core.util.errors import ChopperError, DataError, UsageError
from chopper_tui.keymap import FIXED_KEYS, Action, is_key

CHART_SIZES: Final = ("small", "full", "off")
_GLYPHS: Final = ("auto", "unicode", "ascii")
_COLUMNS_SCHEMA: Final = "chopper.columns/1"
_LAYOUT_SCHEMA: Final = "chopper.layout/1"
_SWITCHES: Final = ("mouse", "full_names")
_SECTIONS: Final = ("explorer", "columns", "keys")
_COLUMN_LEVELS: Final = (*LEVELS, ACTIVITY)


class Config(Struct, frozen=True):
    """A person's settings of the explorer, with its defaults."""

    theme: str = ""
    glyphs: str = "auto"
    chart: str = ""
    mouse: bool = True
    full_names: bool = False
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Level → names of metrics."""
    actions: tuple[Action, ...] = ()
    """All actions with the person's keys; none where no key is changed."""
    warnings: tuple[str, ...] = ()
    """Unknown entries of the file, one sentence each."""
    splits: Mapping[str, int] = field(default_factory=dict)
    """View → lines by which the line between its pictures and its table is moved."""
    remember: bool = False
    """Whether chosen columns are saved for the next session."""
    is_first: bool = False
    """Whether the person starts the explorer for the first time."""


DEFAULTS: Final = Config()


def state_directory() -> Path:
    """Where Chopper keeps what outlives a session: columns, logs, snapshots without a place."""
    return user_folder("XDG_STATE_HOME", "~/.local/state")


def config_path() -> Path:
    """The path of the settings file."""
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
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is invalid TOML: {error}") from error
    return _ConfigReader(path, actions).config(document)


class _ConfigReader(Struct):
    """Reads one document and collects warnings about unknown entries."""

    path: Path
    actions: Callable[[], Sequence[Action]]
    warnings: list[str] = field(default_factory=list)

    def config(self, document: Mapping[str, object]) -> Config:
        for name in document:
            if name not in _SECTIONS:
                self._unknown(name, "section", _SECTIONS)
        sections = {name: self._table(document, name) for name in _SECTIONS}
        found = self._explorer(sections["explorer"])
        columns = self._columns(sections["columns"])
        actions = self._keys(sections["keys"])
        return replace(found, columns=columns, actions=actions, warnings=tuple(self.warnings))

    def _explorer(self, table: Mapping[str, object]) -> Config:
        choices: dict[str, tuple[str, ...]]
        choices = {"theme": _themes() if "theme" in table else (), "glyphs": _GLYPHS}
        choices["chart"] = CHART_SIZES
        words: dict[str, str] = {}
        switches: dict[str, bool] = {}
        for name, value in table.items():
            where = f"explorer.{name}"
            if name in _SWITCHES:
                if not isinstance(value, bool):
                    raise self._wrong(where, value, ("true", "false"))
                switches[name] = value
            elif name in choices:
                allowed = choices[name]
                if not isinstance(value, str) or value not in allowed:
                    raise self._wrong(where, value, allowed)
                words[name] = value
            else:
                self._unknown(where, "setting", (*choices, *_SWITCHES))
        return Config(**words, **switches)  # type: ignore[arg-type]

    def _columns(self, table: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
        from chopper_core.metrics import METRICS
        from chopper_core.model.column_names import is_counter

        columns: dict[str, tuple[str, ...]] = {}
        for level, value in table.items():
            where = f"columns.{level}"
            if level not in _COLUMN_LEVELS:
                self._unknown(where, "level", _COLUMN_LEVELS)
                continue
            names = self._texts(where, value)
            for name in names:
                if name not in METRICS and not is_counter(name):
                    raise UsageError(
                        f"{self.path}: {where} has the unknown column {name!r}; "
                        "`chopper metrics` lists all"
                    )
            columns[level] = tuple(names)
        return columns

    def _keys(self, table: Mapping[str, object]) -> tuple[Action, ...]:
        chosen: dict[str, tuple[str, ...]] = {}
        owners: dict[str, str] = {}
        if not table:
            return ()
        actions = self.actions()
        verbs = [action.verb for action in actions]
        for verb, value in table.items():
            where = f"keys.{verb}"
            if verb not in verbs:
                self._unknown(where, "command", ("those of `chopper keys`",))
                continue
            chosen[verb] = tuple(self._texts(where, value))
            for key in chosen[verb]:
                if not is_key(key):
                    raise UsageError(f"{self.path}: {where} has the invalid key {key!r}")
                if key in FIXED_KEYS:
                    raise UsageError(f"{self.path}: {where} has {key}, which can't be reassigned")
                if key in owners:
                    raise UsageError(
                        f"{self.path}: {where} has {key!r}, which keys.{owners[key]} has too"
                    )
                owners[key] = verb
        if not chosen:
            return ()
        return tuple(action.with_keys(chosen.get(action.verb), owners) for action in actions)

    def _table(self, document: Mapping[str, object], name: str) -> Mapping[str, object]:
        value = document.get(name, {})
        if not isinstance(value, dict):
            raise UsageError(f"{self.path}: {name} must be a section: [{name}]")
        return value

    def _texts(self, where: str, value: object) -> list[str]:
        values = [value] if isinstance(value, str) else value
        if isinstance(values, list):
            texts = [text for text in values if isinstance(text, str)]
            if len(texts) == len(values):
                return texts
        raise UsageError(f"{self.path}: {where} must be a string or a list of strings")

    def _wrong(self, where: str, value: object, allowed: tuple[str, ...]) -> UsageError:
        return UsageError(f"{self.path}: {where} is {value!r}; expected {', '.join(allowed)}")

    def _unknown(self, where: str, what: str, known: tuple[str, ...]) -> None:
        self.warnings.append(f"{self.path}: unknown {what} {where!r}; expected {', '.join(known)}")


def _themes() -> tuple[str, ...]:
    from chopper_tui.draw.theme import THEMES

    return THEMES


class _Saved(Struct, frozen=True):
    """State saved between sessions, each part in its own file."""

    schema: str
    columns: dict[str, tuple[str, ...]] = {}
    splits: dict[str, int] = {}


def _saved(path: Path, schema: str) -> _Saved:
    """The content of a file; nothing if it is missing, corrupt or of another version."""
    try:
        kept = msgspec.json.decode(read_small(path), type=_Saved)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return _Saved(schema)
    return kept if kept.schema == schema else _Saved(schema)


def columns_path() -> Path:
    """The path of the saved columns."""
    return state_directory() / "columns.json"


def saved_columns() -> dict[str, tuple[str, ...]]:
    """The saved columns."""
    known = _saved(columns_path(), _COLUMNS_SCHEMA).columns
    return {level: names for level, names in known.items() if level in _COLUMN_LEVELS}


def layout_path() -> Path:
    """The path of the saved lines between pictures and tables."""
    return state_directory() / "layout.json"


def saved_splits() -> dict[str, int]:
    """The saved lines between pictures and tables."""
    return _saved(layout_path(), _LAYOUT_SCHEMA).splits


def save_splits(splits: Mapping[str, int]) -> None:
    """Save the lines between pictures and tables, by view; raises DataError."""
    moved = {name: lines for name, lines in splits.items() if lines}
    _save(layout_path(), {"schema": _LAYOUT_SCHEMA, "splits": moved}, "layout")


def save_columns(level: str, names: tuple[str, ...]) -> None:
    """Save the columns of a level, or remove them if there are none; raises DataError."""
    columns = {**saved_columns(), level: names}
    columns = {level: names for level, names in columns.items() if names}
    _save(columns_path(), {"schema": _COLUMNS_SCHEMA, "columns": columns}, "columns")


def _save(path: Path, kept: Mapping[str, object], name: str) -> None:
    """Write a file in one step; raises DataError."""
    try:
        make_private(path.parent)
        publish(path, msgspec.json.format(msgspec.json.encode(kept), indent=1), mode=0o600)
    except OSError as error:
        raise DataError(f"the {name} can't be saved in {path}: {error.strerror}") from error


def is_first_start() -> bool:
    """Whether the explorer was never started before; from now on it was."""
    path = state_directory() / "started"
    if os.path.exists(path):
        return False
    try:
        make_private(path.parent)
        path.touch()
    except OSError:
        return False
    return True


def fitting_columns(
    columns: Mapping[str, tuple[str, ...]], table: KernelTable
) -> dict[str, tuple[str, ...]]:
    """The columns of each level that a run can have."""
    found = {}
    for level, names in columns.items():
        known = tuple(name for name in names if _is_known(name, table))
        if known:
            found[level] = known
    return found


def _is_known(name: str, table: KernelTable) -> bool:
    try:
        metric_named(name, table)
    except ChopperError:
        return False
    return True
