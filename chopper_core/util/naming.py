"""Names that people type: in any case, with or without dashes, and cut where they stay unique."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from chopper_core.util.errors import UsageError

_IGNORED: Final = str.maketrans("", "", " -_·")
_MOST_NEAR: Final = 3
_NO_TITLES: Final[Mapping[str, str]] = {}


def bare(text: str) -> str:
    """A name without case, spaces, dashes and underscores: all that people mix up."""
    return text.casefold().translate(_IGNORED)


def names_meant(
    text: str, names: Iterable[str], titles: Mapping[str, str] = _NO_TITLES
) -> tuple[str, ...]:
    """The names that a typed one may be: itself; else those spelled so; else those begun so.

    `titles` are other words for names: word → name.
    """
    known = {**titles, **{name: name for name in names}}
    if text in known:
        return (known[text],)
    typed = bare(text)
    spelled: dict[str, list[str]] = {bare(word): [] for word in known}
    for word, name in known.items():
        spelled[bare(word)].append(name)
    if typed in spelled:
        return tuple(dict.fromkeys(spelled[typed]))
    begun = (each for word, found in spelled.items() if word.startswith(typed) for each in found)
    return tuple(dict.fromkeys(begun)) if typed else ()


def near_names(text: str, names: Iterable[str]) -> list[str]:
    """The names nearest to one that is none of them, the nearest first."""
    from difflib import get_close_matches

    known = {bare(name): name for name in names}
    return [known[each] for each in get_close_matches(bare(text), known, _MOST_NEAR)]


def one_named(
    kind: str, text: str, names: Iterable[str], titles: Mapping[str, str] = _NO_TITLES
) -> str:
    """The name that a typed one is; raises UsageError, with the near names, for none or several."""
    known = tuple(names)
    found = names_meant(text, known, titles)
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{kind} {text!r} may be {', '.join(found)}")
    near = near_names(text, (*known, *titles))
    hint = f"did you mean {' or '.join(near)}?" if near else f"the {kind}s are {', '.join(known)}"
    raise UsageError(f"unknown {kind} {text!r}; {hint}")
