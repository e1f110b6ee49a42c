"""Keys as Textual names them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_CHARACTERS: Final = {
    "[": "left_square_bracket",
    "]": "right_square_bracket",
    "{": "left_curly_bracket",
    "}": "right_curly_bracket",
    "-": "minus",
    "/": "slash",
    ",": "comma",
    ".": "full_stop",
    ":": "colon",
    "?": "question_mark",
    "%": "percent_sign",
    "=": "equals_sign",
}


def textual_keys(keys: Iterable[str]) -> str:
    """Keys of an action as the keys of a binding."""
    return ",".join(_CHARACTERS.get(key, key) for key in keys)
