"""Keys as people write them, and as the screen names them."""

from __future__ import annotations

from typing import Final

PALETTE_KEY: Final = "ctrl+p"
"""Opens the palette: all actions, searched by name."""
FIXED_KEYS: Final = ("ctrl+c", "ctrl+z", PALETTE_KEY)
"""What these do doesn't depend on a person's keys."""
_NAMED: Final = {
    "enter": "⏎",
    "escape": "esc",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "home": "Home",
    "end": "End",
    "backspace": "Backspace",
}
_SPECIAL: Final = frozenset(_NAMED) | {
    *("space", "tab", "delete", "insert"),
    *(f"f{number}" for number in range(1, 13)),
}


def key_name(key: str) -> str:
    """A key as the screen names it."""
    return _NAMED.get(key, key)


def is_key(text: str) -> bool:
    """Whether a text names a key, as people write it: `G`, `[`, `enter`, `ctrl+d`, `f5`."""
    *modifiers, key = text.split("+") if len(text) > 1 else [text]
    if any(modifier not in ("ctrl", "alt", "shift") for modifier in modifiers):
        return False
    return key in _SPECIAL or (len(key) == 1 and key.isprintable() and key != " ")
