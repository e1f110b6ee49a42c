"""Times of sentences: four significant digits and a unit that fits."""

from __future__ import annotations

import pytest

from chopper_core.model.units import time_text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ms"),
        (1, "0.001 µs"),
        (1_234, "1.234 µs"),
        (999_949, "999.9 µs"),
        (1_000_000, "1.000 ms"),
        (12_897_600, "12.90 ms"),
        (417_056_000, "417.1 ms"),
        (6_293_424_000, "6293 ms"),
        (11_839_033_000, "11.84 s"),
        (-39_186_000, "-39.19 ms"),
        (251_576_810e6, "251577 s"),
    ],
)
def test_a_time_has_four_digits(ns: float, text: str) -> None:
    assert time_text(ns) == text
    if ns > 0:
        assert time_text(ns, "+") == f"+{text}"
