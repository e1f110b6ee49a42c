"""Sparklines of rows on one scale: it shows what differs, and a flat row is no wall."""

from __future__ import annotations

import numpy as np
import pytest

from chopper_core.model.address import parse
from chopper_core.model.signals import Signal
from chopper_core.model.units import Unit
from chopper_core.render.glyphs import ASCII, SAMPLED, UNICODE, SparkScale, evenly_sampled
from chopper_core.render.text import as_text
from chopper_core.util.errors import UsageError
from chopper_core.views.query import query
from tests.demo import demo_run

NAN = float("nan")


def test_the_scale_goes_from_the_first_to_the_last_percentile_of_all_rows() -> None:
    means = np.random.default_rng(1).normal(1700, 60, (50, 12))
    means[0, 0], means[3, 3] = 20_000, NAN
    scale = SparkScale.of(means)
    known = sorted(number for number in means.ravel().tolist() if number == number)
    below = sum(number < scale.low for number in known) / len(known)
    above = sum(number > scale.high for number in known) / len(known)
    assert below == pytest.approx(0.01, abs=0.002) and above == pytest.approx(0.01, abs=0.002)


def test_a_row_that_changes_is_drawn_and_a_flat_one_is_a_thin_line_with_its_value() -> None:
    means = np.array([[1500.0] * 12, np.linspace(1500, 1700, 12).tolist(), [1700.0] * 12])
    scale = SparkScale.of(means)
    flat, rising, high = (scale.line(row, Unit.MHZ, UNICODE) for row in means)
    assert flat == "─" * 7 + " 1500" and high == "─" * 7 + " 1700"
    assert rising[0] == "▁" and rising[-1] == "█" and len(rising) == 12
    assert scale.line(means[0], Unit.MHZ, ASCII) == "-" * 7 + " 1500"


def test_noise_does_not_fill_the_scale() -> None:
    means = np.full((8, 12), 100.0) - np.random.default_rng(2).random((8, 12)) * 0.05
    scale = SparkScale.of(means)
    assert all(scale.line(row, Unit.MHZ, UNICODE) == "─" * 8 + " 100" for row in means)


def test_what_is_unknown_is_blank_and_nothing_known_is_no_error() -> None:
    scale = SparkScale.of(np.array([[NAN, 1.0, 5.0]]))
    assert scale.line(np.array([NAN, 1.0, 5.0]), Unit.MHZ, UNICODE)[0] == " "
    nothing = np.array([[NAN] * 3])
    assert SparkScale.of(nothing).line(nothing[0], Unit.MHZ, UNICODE) == "   "


def test_the_title_says_the_scale() -> None:
    clock = Signal("gfx_mhz", "gfx", Unit.MHZ, {}, 0, 2100)
    use = Signal("gfx_util_pct", "util", Unit.PERCENT, {}, 0, 100)
    assert SparkScale(1557.2, 1738.4).title(clock) == "gfx 1557-1738 MHz"
    memory = Signal("vram_bytes", "VRAM", Unit.BYTES, {}, 0, 0)
    assert SparkScale(150e9, 158_548_885_504).title(memory) == "VRAM 150-159 GB"
    assert SparkScale(99.8, 100.0).title(use) == "util 100%"


def test_of_very_many_rows_some_give_the_scale() -> None:
    assert evenly_sampled(3).tolist() == [0, 1, 2] and len(evenly_sampled(0)) <= 1
    many = evenly_sampled(1_000_000)
    assert len(many) == SAMPLED and many[0] == 0 and many[-1] == 999_999


def test_a_table_has_a_column_of_sparklines_for_each_signal_asked_for() -> None:
    run = demo_run()
    frame = query(run, parse(f"{run.name}?metric=gfx_mhz,gfx_util_pct"))
    heading, first, *_ = as_text(frame, width=200).splitlines()[1:]
    assert heading.index("gfx 15") < heading.index("gfx util 9")
    end = heading.index("gfx util 9")
    assert first[heading.index("gfx 15") : end].strip() and first[end:].strip()
    assert [each.name for each in (frame.signal, *frame.signals)] == ["gfx_mhz", "gfx_util_pct"]
    # Of a narrow table the first one stays.
    narrow = as_text(frame, width=90)
    assert "gfx 15" in narrow and "gfx util 9" not in narrow
    with pytest.raises(UsageError, match="unknown signal 'nope'"):
        query(run, parse(f"{run.name}?metric=gfx_mhz,nope"))
