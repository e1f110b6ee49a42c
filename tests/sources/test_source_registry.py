"""The formats that Chopper reads."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest

from chopper_core.sources import registry
from chopper_core.sources.registry import (
    FORMATS,
    Family,
    ListedPaths,
    SourceFormat,
    formats,
)
from chopper_core.util.patterns import natural_key
from tests.sources.telemetry.telemetry_texts import DMON
from tests.wording import Wording

SOURCES = Path(registry.__file__).parent
MEMBERS = ("recognise", "read")


@pytest.mark.parametrize("family", FORMATS)
def test_every_format_offers_what_the_protocol_asks(family: Family) -> None:
    for source in formats(family):
        for name in SourceFormat.__annotations__:
            assert isinstance(getattr(source, name), tuple if name == "SUFFIXES" else str)
        assert source.NAME and source.FILES
        for name in MEMBERS:
            asked = list(inspect.signature(getattr(SourceFormat, name)).parameters)[1:]
            offered = inspect.signature(getattr(source, name)).parameters.values()
            assert len([each for each in offered if each.kind != each.KEYWORD_ONLY]) == len(asked)


def test_every_module_that_offers_a_format_is_registered() -> None:
    registered = {f"chopper_core.sources.{name}" for names in FORMATS.values() for name in names}
    for path in SOURCES.rglob("*.py"):
        name = ".".join(("chopper_core.sources", *path.relative_to(SOURCES).with_suffix("").parts))
        offers = "\nEXAMPLE: Final" in path.read_text(encoding="utf-8")
        assert offers == (name in registered), name
        assert not offers or hasattr(import_module(name), "recognise")


def test_names_sort_by_their_numbers_of_any_length() -> None:
    names = ["rank10", "rank9", "rank007", "rank8b", "rank8a", f"rank{'9' * 5000}"]
    expected = ["rank007", "rank8a", "rank8b", "rank9", "rank10", f"rank{'9' * 5000}"]
    assert sorted(names, key=natural_key) == expected


@pytest.mark.parametrize("is_read", [False, True])
def test_of_thousands_of_like_names_some_tell_whether_all_are_read(
    is_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    monkeypatch.setattr(registry, "_MOST_ALIKE", 20)
    for number in range(60):
        text = DMON if is_read else "step 1, loss 2.0\n"
        (tmp_path / f"log_{number}.txt").write_text(text)
    (tmp_path / "other.txt").write_text(DMON)
    found = ListedPaths([tmp_path]).found(Family.TELEMETRY)
    names = {file.path.name for file in found.files}
    assert "other.txt" in names and len(names) == (61 if is_read else 1)
    if not is_read:
        (skipped,) = found.skipped
        assert skipped.path.name == "log_0.txt"
        wording(skipped.reason, "59 more", "none of 50")
        named = ListedPaths([tmp_path / "log_7.txt"]).found(Family.TELEMETRY)
        assert [*named.unknown] == [tmp_path / "log_7.txt"]
