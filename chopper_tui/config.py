"""The person's own settings: `config.toml` with keys, defaults of the explorer and columns."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from chopper_core.model.table import ACTIVITY, LEVELS
from chopper_core.util.errors import UsageError
from chopper_tui.actions import ACTIONS
from chopper_tui.actions.action import Action
from chopper_tui.actions.key_names import FIXED_KEYS, is_key

_GLYPHS: Final = ("auto", "unicode", "ascii")
_SWITCHES: Final = ("mouse", "full_names")
_SECTIONS: Final = ("explorer", "columns", "keys")
_ROWS: Final = (*LEVELS, ACTIVITY)


class Config(Struct, frozen=True):
    """How a person wants the explorer; as it comes where they say nothing."""

    theme: str = ""
    glyphs: str = "auto"
    chart: str = ""
    mouse: bool = True
    full_names: bool = False
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Level → names of metrics."""
    actions: tuple[Action, ...] = ACTIONS
    """The registry with the person's keys."""
    warnings: tuple[str, ...] = ()
    """What the file says that means nothing here, one sentence each."""
    remember: bool = False
    """Whether columns that are chosen are kept for the next session."""


AS_IT_COMES: Final = Config()


def config_path() -> Path:
    """Where the settings are looked for."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "chopper" / "config.toml"


def read_config(path: Path | None = None) -> Config:
    """The settings of a file, those of the program where there is none; raises UsageError."""
    path = path or config_path()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Config()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}") from error
    # Most have no such file.
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is no TOML: {error}") from error
    return _Reader(path).config(document)


class _Reader(Struct):
    """Reads one document; remembers what it had to leave out."""

    path: Path
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
        from chopper_tui.screens.arrangement import CHARTS

        choices: dict[str, tuple[str, ...]]
        choices = {"theme": _themes() if "theme" in table else (), "glyphs": _GLYPHS}
        choices["chart"] = CHARTS
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
            if level not in _ROWS:
                self._unknown(where, "level", _ROWS)
                continue
            names = self._texts(where, value)
            for name in names:
                if name not in METRICS and not is_counter(name):
                    raise UsageError(
                        f"{self.path}: {where} names {name!r}, which is no column; "
                        "`chopper metrics` lists all"
                    )
            columns[level] = tuple(names)
        return columns

    def _keys(self, table: Mapping[str, object]) -> tuple[Action, ...]:
        chosen: dict[str, tuple[str, ...]] = {}
        owners: dict[str, str] = {}
        verbs = [action.verb for action in ACTIONS]
        for verb, value in table.items():
            where = f"keys.{verb}"
            if verb not in verbs:
                self._unknown(where, "command", ("those of `chopper keys`",))
                continue
            chosen[verb] = tuple(self._texts(where, value))
            for key in chosen[verb]:
                if not is_key(key):
                    raise UsageError(f"{self.path}: {where} names {key!r}, which is no key")
                if key in FIXED_KEYS:
                    raise UsageError(f"{self.path}: {where} takes {key}, which can't be changed")
                if key in owners:
                    raise UsageError(
                        f"{self.path}: {where} takes {key!r}, which is that of keys.{owners[key]}"
                    )
                owners[key] = verb
        return tuple(_with_keys(action, chosen.get(action.verb), owners) for action in ACTIONS)

    def _table(self, document: Mapping[str, object], name: str) -> Mapping[str, object]:
        value = document.get(name, {})
        if not isinstance(value, dict):
            raise UsageError(f"{self.path}: {name} is no section; write it as [{name}]")
        return value

    def _texts(self, where: str, value: object) -> list[str]:
        values = [value] if isinstance(value, str) else value
        if isinstance(values, list):
            texts = [text for text in values if isinstance(text, str)]
            if len(texts) == len(values):
                return texts
        raise UsageError(f"{self.path}: {where} is no text and no list of texts")

    def _wrong(self, where: str, value: object, allowed: tuple[str, ...]) -> UsageError:
        return UsageError(f"{self.path}: {where} is {value!r}; it may be {', '.join(allowed)}")

    def _unknown(self, where: str, what: str, known: tuple[str, ...]) -> None:
        self.warnings.append(f"{self.path}: no {what} {where!r}; there are {', '.join(known)}")


def _with_keys(action: Action, keys: tuple[str, ...] | None, owners: Mapping[str, str]) -> Action:
    """An action with a person's keys, or without those that they gave to another one."""
    if keys is None and action.gives:
        rest = [
            pair for pair in zip(action.keys, action.gives, strict=True) if pair[0] not in owners
        ]
        return replace(
            action,
            keys=tuple(key for key, _ in rest),
            gives=tuple(given for _, given in rest),
        )
    if keys is None:
        keys = tuple(key for key in action.keys if key not in owners)
    fixed = tuple(key for key in action.keys if key in FIXED_KEYS)
    return replace(action, keys=tuple(dict.fromkeys((*keys, *fixed))))


def _themes() -> tuple[str, ...]:
    from chopper_tui.draw.theme import THEMES

    return THEMES
