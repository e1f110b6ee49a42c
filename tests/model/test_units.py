"""Times of sentences: four significant digits and a unit that fits."""

from __future__ import annotations

import numpy as np
import pytest

from chopper_core.model.signals import bounds_of
from chopper_core.model.units import Unit, moment_text, scaled_text, time_text, utc_text
from chopper_core.model.view import parse_time


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ms"),
        (1, "0.001 µs"),
        (1_234, "1.234 µs"),
        (999_949, "999.9 µs"),
        (1_000_000, "1 ms"),
        (12_897_600, "12.9 ms"),
        (417_056_000, "417.1 ms"),
        (6_293_424_000, "6293 ms"),
        (11_839_033_000, "11.84 s"),
        (-39_186_000, "-39.19 ms"),
        (599e9, "599 s"),
        (2_751e9, "45.85 min"),
        (251_576_810e6, "69.88 h"),
    ],
)
def test_a_time_has_four_digits(ns: float, text: str) -> None:
    assert time_text(ns) == text
    if ns > 0:
        assert time_text(ns, "+") == f"+{text}"


def test_a_date_is_in_utc_to_the_second() -> None:
    assert utc_text(1_772_700_000_999_999_999) == "2026-03-05 08:40:00 UTC"
    assert utc_text(0) == "1970-01-01 00:00:00 UTC"


@pytest.mark.parametrize(
    ("ns", "decimals", "end_ns", "text"),
    [
        (12_345_678, 3, 0, "12.346"),
        (12_345_678, -1, 0, "12"),
        (9_999_000_000, 0, 0, "9999"),
        (99_999_000_000, 0, 0, "99.999"),
        (251_576_809_737_000, 3, 0, "69:52:56.809737"),
        (251_576_809_737_000, 0, 0, "69:52:56.809"),
        (251_576_809_737_000, -1, 0, "69:52:56"),
        (5_000_000, 0, 251_576_809_737_000, "0:00:00.005"),
    ],
)
def test_moments_of_a_long_run_are_on_a_clock(
    ns: int, decimals: int, end_ns: int, text: str
) -> None:
    assert moment_text(ns, decimals, end_ns) == text
    if ":" in text and decimals == 3:
        assert parse_time("at", text) == ns


def test_a_column_of_hours_is_in_hours() -> None:
    assert [Unit.NS.scale(ns, False).text for ns in (5e9, 5e11, 2_751e9, 2.5e14)] == [
        *("ms", "s", "min", "h")
    ]


def test_much_energy_has_a_unit_that_fits() -> None:
    texts = []
    for joules in (712.0, 9_999.0, 27_310.0, 890_780.0, 3_712_060.0):
        scale = Unit.JOULES.scale(joules, is_whole=False)
        texts.append(f"{scale.number(joules)} {scale.text}")
    assert texts == ["712.0 J", "9999.0 J", "27.31 kJ", "890.78 kJ", "3.712 MJ"]


def test_bounds_of_short_times_since_1970_are_told_apart() -> None:
    begin = 1_700_000_000_123_456_789
    bounds = bounds_of(begin, begin + 1_760, 24)
    assert (bounds[0], bounds[-1]) == (begin, begin + 1_760)
    assert set(np.diff(bounds).tolist()) == {73, 74}


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0.0 %"), (0.0083, "<0.1 %"), (0.06, "0.1 %"), (62.04, "62.0 %")],
)
def test_a_small_share_isnt_zero(share: float, text: str) -> None:
    assert scaled_text(share, Unit.PERCENT) == text


def test_no_time_reads_as_most_times_do() -> None:
    scale = Unit.NS.scale(0.0, is_whole=True)
    assert f"{scale.cell(0.0)} {scale.text}" == time_text(0.0) == "0 ms"
    assert Unit.NS.scale(1.0, is_whole=True).text == "ns"
