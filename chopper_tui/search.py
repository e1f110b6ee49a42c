"""What a person types, against titles and explanations: entries that have its words, or most."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from chopper_core.model import address
from chopper_core.util.patterns import late

if TYPE_CHECKING:
    from chopper_core.model.run import Run
    from chopper_core.model.view import View

_FILLING: Final = """
a about all an and any are as at be by can did do does for from had has have here how i if in
into is it its look many me much my of on one or our own pass per please should show than that
the their them then there these this to us was we what when where which who whose will with
would you
"""
FILLING: Final = frozenset(_FILLING.split())
"""Words of a question that are in no title, or in too many."""
_ALIKE: Final = """
allocated memory vram hbm
baseline base compare
clock frequency mhz ghz
communication collective comm network nccl rccl bus
core cpu thread
difference compare diff
drop dropped low throttled throttle throttling slower below
energy j joule mj
flame blocks icicle
gap idle wait
gemm matmul matrix
host cpu launch
html page report
processor cpu
queue queued launch
roofline roof
save saving what-if
second /s
straggler slow slower lag late delay ranks
speed throughput tokens/s
temperature hot hotspot °c
token tok
output out
trace perfetto
"""
"""Words that titles have for one another, a line each."""
_PUNCTUATION: Final = late(r"[^\w/%°.+-]+")
_OWN, _WITHIN, _OTHER, _EXPLAINED, _MEANT = 4.0, 3.0, 2.0, 1.0, 0.5
"""What a word is worth: in a title, within a word of it, another word for it, in an explanation,
another word for it there."""
_RECENT: Final = "Recent: "
"""Of these the latest comes first, however long its address is."""
_FINDING: Final = "Finding: "
_ANSWER: Final = 2.5
"""What a finding is worth more that has several words: it may be the answer."""
_KINDS: Final = {_FINDING: 0.3, "Kernels of ": 0.6, "Figure: ": 0.4} | dict.fromkeys(
    (f"{digit}  " for digit in range(7)), 0.6
)
"""How entries begin that answer or lead further than those that only add or sort a column."""
_FILLED: Final = 0.5
"""What each word is worth that is only in between, such as the `for` of an entry's title."""
_MISSING: Final = 1.5
"""What a word that an entry lacks takes from the score of those that it has."""
_MOST_PARTIAL: Final = 20
_MOST_NAMES: Final = 200_000
"""Names of a run that are looked through while a person types."""
_SHORTEST: Final = 3
"""Letters of a word that may be mistyped: of two another mistake makes too many words."""


class Offer(NamedTuple):
    """Something that a search finds: a title, an explanation, and the action that it performs."""

    title: str
    why: str
    action: str
    argument: str = ""
    lacks: str = ""
    """Why its place has no answer on this run; empty: it may have one."""
    says: str = ""
    """What stands below its place, once it is open; empty: nothing."""


def going(title: str, why: str, view: View, is_said: bool = False) -> Offer:
    """An entry that goes to a view; `is_said`: the explanation is the answer, and stays below."""
    return Offer(title, why, "go", address.render(view), says=why if is_said else "")


def can_look_through(run: Run) -> bool:
    """Whether the names of a run are few enough to be looked through while a person types."""
    return len(run.table.names) <= _MOST_NAMES


@lru_cache(maxsize=1)
def _alike() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {"iteration": ("step",)}
    for group in (line.split() for line in _ALIKE.strip().splitlines()):
        found |= {
            word: (*found.get(word, ()), *(each for each in group if each != word))
            for word in group
        }
    return found


def words_alike() -> Iterable[str]:
    """The words that titles have for one another, and those of questions."""
    return (*_alike(), *FILLING)


@lru_cache(maxsize=8192)
def spaced(text: str) -> str:
    """A text in small letters whose words stand between spaces."""
    return f" {_PUNCTUATION.sub(' ', text.lower()).strip()} "


def stem(word: str) -> str:
    """A word without the ending of its plural."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def is_one_mistake(word: str, other: str) -> bool:
    """Whether one typing mistake makes a word another: a letter left out, added, wrong, or two
    swapped."""
    first = next((at for at, (a, b) in enumerate(zip(word, other, strict=False)) if a != b), None)
    if first is None:
        return abs(len(word) - len(other)) == 1
    one, two = word[first:], other[first:]
    is_swapped = one[:2] == two[1::-1] and one[2:] == two[2:]
    return is_swapped or one[1:] == two[1:] or one[1:] == two or one == two[1:]


def without_mistakes(typed: Sequence[str], known: Collection[str]) -> list[str]:
    """Words, each that nothing knows replaced by the first known one that it may be mistyped of."""
    return [
        word
        if not word.isalpha() or len(word) < _SHORTEST or word in known or stem(word) in known
        else next((each for each in known if is_one_mistake(word, each)), word)
        for word in typed
    ]


def telling(words: Iterable[str]) -> list[str]:
    """The words that say what is looked for; all, where none does."""
    known = [*dict.fromkeys(words)]
    return [word for word in known if word not in FILLING] or known


class _Wanted(NamedTuple):
    """What a word is looked for as, in texts whose words stand between spaces."""

    word: str
    own: str
    within: str
    others: tuple[str, ...]
    """Whole words that mean the same, be they of several; `/s` may end one."""

    @classmethod
    def of(cls, word: str) -> _Wanted:
        own = f" {stem(word)}" + " " * word.isdigit()
        alike = _alike().get(own[1:], ()) or _alike().get(word, ())
        others = [text for each in alike for text in (f" {each} ", f" {each}s ")]
        others += [f"{each} " for each in alike if each[0] == "/"]
        return cls(word, own, own[1:] if len(own) > 2 else own, tuple(others))

    def score(self, title: str, why: str) -> float:
        if self.own in title:
            return _OWN
        if self.within in title:
            return _WITHIN
        if any(each in title for each in self.others):
            return _OTHER
        if self.own in why:
            return _EXPLAINED
        return _MEANT * any(each in why for each in self.others)


class _Scored(NamedTuple):
    entry: Offer
    score: float
    missing: tuple[str, ...]
    is_titled: bool


def _hit(
    entry: Offer, words: Sequence[_Wanted], filling: Sequence[str], most: int
) -> _Scored | None:
    """How well an entry answers; None where it lacks more words than `most`: nearly all do."""
    title, why = spaced(entry.title), spaced(entry.why)
    scores, lacking = list[float](), list[str]()
    for word in words:
        scores.append(word.score(title, why))
        if not scores[-1]:
            lacking.append(word.word)
            if len(lacking) > most:
                return None
    missing = tuple(lacking)
    named = sum(score >= _OTHER for score in scores)
    # Of two titles that have the words the shorter one says nothing else.
    score = _FILLED * sum(f" {word} " in title for word in filling)
    whole = 1 if entry.title.startswith(_RECENT) else title.count(" ") - 1
    score += sum(scores) - _MISSING * len(missing) + named / whole
    kind = next((kind for kind in _KINDS if entry.title.startswith(kind)), "")
    is_answer = kind == _FINDING and not missing and len(words) > 1
    bonus = _ANSWER if is_answer else _KINDS.get(kind, 0.0)
    return _Scored(entry, score + bonus, missing, named == len(words) or is_answer)


def found_among(
    entries: Iterable[Offer],
    typed: Sequence[str],
    *,
    is_whole: bool = False,
    is_near: bool = False,
) -> list[Offer]:
    """The entries that have what was typed: in the title, or else explained, or most of it unless
    it has to be the whole, or any of it where what is near is enough.

    Those whose place has no answer come last and say so; one that lacks words names them.
    """
    every = spaced(" ".join(typed)).split()
    words = telling(every)
    filling = [word for word in every if word not in words]
    most = len(words) if is_near else 0 if is_whole else len(words) // 2
    wanted = [_Wanted.of(word) for word in words]
    found = (_hit(entry, wanted, filling, most) for entry in entries)
    hits = [hit for hit in found if hit is not None and hit.score > 0]
    hits.sort(key=lambda hit: (not hit.is_titled, -hit.score))
    able = [hit for hit in hits if not hit.entry.lacks]
    titled = [hit for hit in able if hit.is_titled]
    others = [hit for hit in able if not hit.is_titled and not (titled and hit.missing)]
    others = [hit for at, hit in enumerate(others) if at < _MOST_PARTIAL or not hit.missing]
    unable = [hit for hit in hits if hit.entry.lacks and not hit.missing]
    return [_shown(hit) for hit in (*titled, *others, *unable)]


def is_titled(entry: Offer, typed: Sequence[str]) -> bool:
    """Whether all that was typed is in an entry's title."""
    title = spaced(entry.title)
    return all(f" {stem(word)}" in title for word in telling(typed))


def _shown(hit: _Scored) -> Offer:
    if hit.entry.lacks:
        return hit.entry._replace(why=f"not in this run: {hit.entry.lacks}")
    if hit.missing:
        lacks = f"(It says nothing of “{' '.join(hit.missing)}”.)"
        return hit.entry._replace(why=f"{hit.entry.why} {lacks}")
    return hit.entry
