"""Sentences of the product in tests: the facts stand in the test, the words in a golden file."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

Words = dict[str, list[str]]
"""The sentences of each test of a module, in the order in which it checks them."""


class Wording:
    """Checks the facts that a sentence has, and its words, which a file next to the test has.

    `wording(sentence, "GPU 3", "4.3 ms")`: CHOPPER_UPDATE_GOLDENS=1 writes the words anew, the
    facts stay in the test. `wording.among(lines, "GPU 3")` takes the one line, note or label of
    several that has all facts.
    """

    def __init__(self, golden: Path, test: str, places: Mapping[str, str]) -> None:
        """`places` are paths of this machine, each with the word that the golden has for it."""
        self._golden, self._test, self._places = golden, test, places
        self._said: list[str] = []

    def __call__(self, sentence: str, *facts: str) -> None:
        sentence = sentence.strip()
        assert "\n" not in sentence, f"several lines: {sentence}"
        assert [fact for fact in facts if not _has(sentence, fact)] == [], sentence
        for place, word in self._places.items():
            sentence = sentence.replace(place, word)
        self._said.append(sentence)
        if os.environ.get("CHOPPER_UPDATE_GOLDENS"):
            rewrite(self._golden, lambda known: known | {self._test: self._said})
        known = json.loads(self._golden.read_text("utf-8"))[self._test]
        assert known[len(self._said) - 1] == sentence

    def among(self, lines: str | Iterable[str], *facts: str) -> None:
        """The same of the only line that has all facts, however often it is there."""
        lines = {*(lines.splitlines() if isinstance(lines, str) else lines)}
        found = [line for line in lines if all(_has(line, fact) for fact in facts)]
        assert len(found) == 1, f"{len(found)} lines have {facts}: {found or lines}"
        self(found[0], *facts)


def rewrite(golden: Path, change: Callable[[Words], Words]) -> None:
    """Change what a golden has, while other processes run other tests of its module."""
    golden.parent.mkdir(exist_ok=True)
    with golden.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        words = change(json.loads(file.read() or "{}"))
        file.truncate(0)
        file.write(json.dumps(words, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def _has(sentence: str, fact: str) -> bool:
    """Whether a sentence has a fact, whose numbers aren't parts of longer ones."""
    before = r"(?<!\d)(?<!\d[.,])" if fact[:1].isdigit() else ""
    after = r"(?![.,]?\d)" if fact[-1:].isdigit() else ""
    return re.search(before + re.escape(fact) + after, sentence) is not None
