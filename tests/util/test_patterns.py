"""A late pattern is the pattern that it stands for."""

from __future__ import annotations

import re

import pytest

from chopper_core.util.patterns import late


def test_a_late_pattern_finds_what_the_pattern_finds() -> None:
    given = (r"(?P<word>[a-z]+)(\d*)", re.IGNORECASE)
    one, other = late(*given), re.compile(*given)
    text = "Rank12 node7"
    for _ in range(2):
        assert [each.groupdict() for each in one.finditer(text)] == [
            each.groupdict() for each in other.finditer(text)
        ]
        assert one.sub(r"\2", text) == other.sub(r"\2", text)
        assert one.pattern == other.pattern and one.flags == other.flags
    assert one.fullmatch(text) is None and one.match(text) is not None


def test_it_is_compiled_when_it_is_used() -> None:
    wrong = late("(")
    with pytest.raises(re.error):
        wrong.search("text")
