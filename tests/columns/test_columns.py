"""Declarations of columns: heading, definition, reasons and sources."""

from __future__ import annotations

import pytest

from chopper_core.analyses import registry as registry
from chopper_core.columns import METRICS, column, lookup, parse_columns, registered
from chopper_core.columns.metric import Reduces
from chopper_core.model.units import Unit


def test_a_declaration_has_a_heading_and_a_definition_of_several_lines() -> None:
    (found,) = parse_columns("""wait_ns | ns | own wait | sum | signed
        Time in collectives
        before the last rank arrived.
        missing: the files lack ranks: some
        or all
        source: a paper""").values()
    assert (found.name, found.unit, found.title) == ("wait_ns", Unit.NS, "own wait")
    assert found.definition == "Time in collectives before the last rank arrived."
    assert found.missing_because == "the files lack ranks: some or all"
    assert (found.source, found.reduces, found.signed) == ("a paper", Reduces.SUM, True)


def test_what_a_declaration_leaves_out_is_empty() -> None:
    (found,) = parse_columns("""calls | | calls
        Number of calls.""").values()
    assert (found.unit, found.missing_because, found.source) == (Unit.NONE, "", "trace")
    assert not found.signed


@pytest.mark.parametrize("heading", ["a | furlong | a", "a | ns | a | product", "a | ns"])
def test_an_unknown_unit_or_reduction_is_refused(heading: str) -> None:
    with pytest.raises(ValueError):
        column(f"{heading}\n    Text.")


def test_metrics_are_listed_alike_whatever_was_imported_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = registered()
    assert len(known) == len(METRICS)
    modules = dict.fromkeys(map(lookup._module, reversed(known)))
    other = [each for module in modules for each in known if lookup._module(each) == module]
    assert other != known
    monkeypatch.setattr(lookup, "METRICS", {each.name: each for each in other})
    assert registered() == known
