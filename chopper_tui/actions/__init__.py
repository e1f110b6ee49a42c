"""The actions of the explorer: each is a function in one of these modules, declared by `@action`.

To add one, write it in the module whose idea it belongs to; keys, commands, palette, help,
settings and docs follow.
"""

from __future__ import annotations

from typing import Final

from chopper_tui.actions import (  # noqa: F401 (importing a module declares its actions)
    ask,
    compare,
    files,
    find,
    palette,
    program,
    shape,
    signals,
    time,
    walk,
)
from chopper_tui.keymap import declared_actions

ACTIONS: Final = declared_actions()
