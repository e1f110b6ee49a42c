"""What stands out in a column: held against loops over the same numbers."""

from __future__ import annotations

import statistics

import numpy as np
from msgspec.structs import replace

from chopper_core.columns import METRICS, Metric, Values, computed_column
from chopper_core.model.table import NO_LABEL_TEXT
from chopper_core.model.view import View
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from chopper_core.views.shared.marks import Tint, tints
from tests.tui.explorer import sample_run

FRAME = query(sample_run(), View("sample.json"))
NAN = float("nan")


def tinted(
    numbers: list[float], metric: str | Metric, level: str = "gpu", last: str = ""
) -> list[int]:
    """The tints of a column with these numbers, of rows that took 100 ns each."""
    of = METRICS[metric] if isinstance(metric, str) else metric
    array = np.array(numbers)
    frame: Frame = replace(
        FRAME,
        level=level,
        labels=(*map(str, range(len(numbers) - 1)), last or "last"),
        values={of.name: Values(np.nan_to_num(array), np.isnan(array))},
        elapsed_ns=np.full(len(numbers), 100, np.int64),
        parent_ns=100 * len(numbers),
    )
    return tints(frame, of).tolist()


def test_a_clock_far_from_the_others_is_far_out_and_a_missing_one_is_not() -> None:
    clocks = [1690.0, 1676, 1679, 1686, 1678, 1574, 1680, NAN]
    assert tinted(clocks, "gfx_mhz") == [0, 0, 0, 0, 0, Tint.FAR_BELOW, 0, 0]
    assert tinted([-clock for clock in clocks], "gfx_mhz")[5] == Tint.FAR_ABOVE


def test_the_limit_is_that_of_outliers() -> None:
    rng = np.random.default_rng(5)
    numbers = [*rng.normal(100, 5, 40).tolist(), 140.0, 60.0]
    median = statistics.median(numbers)
    mad = 1.4826 * statistics.median(abs(number - median) for number in numbers)
    expected = []
    for number in numbers:
        apart = (number - median) / (3.5 * mad)
        side = (Tint.ABOVE, Tint.FAR_ABOVE) if apart > 0 else (Tint.BELOW, Tint.FAR_BELOW)
        expected.append(0 if abs(apart) <= 1 else side[abs(apart) > 2])
    assert tinted(numbers, "gfx_mhz") == expected and any(expected)


def test_what_differs_by_less_than_a_percent_is_alike_even_where_most_are_equal() -> None:
    assert not any(tinted([100.0, 100, 100, 100, 101], "gfx_mhz"))
    assert tinted([100.0, 100, 100, 100, 105], "gfx_mhz")[4] == Tint.FAR_ABOVE
    # Of a sum of time that is mostly 0 the rows' own time is the measure.
    assert not any(tinted([0.0, 0, 0, 0, 1], "idle_ns"))
    assert tinted([0.0, 0, 0, 0, 30], "idle_ns")[4] == Tint.FAR_ABOVE


def test_sums_are_compared_between_peers_alone_and_three_are_too_few() -> None:
    assert not any(tinted([10.0, 10, 10, 10, 90], "elapsed_ns", "operation"))
    assert tinted([10.0, 10, 10, 10, 90], "elapsed_ns", "layer")[4] == Tint.FAR_ABOVE
    assert not any(tinted([10.0, 10, 90], "elapsed_ns"))
    assert not any(tinted([10.0, 10, 10, 90], "share_pct"))


def test_a_column_of_a_view_is_held_against_its_peers_as_a_metric_is() -> None:
    lag = computed_column("lag_ns", "ns", "lag", "How late a GPU is.")
    power = computed_column("mean_power_w", "W", "mean power", "Mean of the samples.")
    assert tinted([0.0, 0.2, 0.8, 0.1, 0.1, 8.0, 0.1, 0.2], lag)[5] == Tint.FAR_ABOVE
    assert tinted([81.0, 112, 110, 111, 110, 110, 107, 108], power)[0] == Tint.FAR_BELOW
    assert not any(tinted([81.0, 112, 110, 111, 110, 110, 107, 108], power, "operation"))
    # Shares within a point are alike, and a count of samples is an aid.
    share = computed_column("x_pct", "%", "x", "A share.")
    assert not any(tinted([0.027, 0.027, 0.027, 0.025, 0.9], share))
    assert tinted([0.0, 0.0, 0.1, 0.0, 8.0], share)[4] == Tint.FAR_ABOVE
    assert not any(
        tinted([93.0, 98, 91, 98, 30, 98], computed_column("n", "", "samples", "A count."))
    )


def test_what_has_no_label_is_no_peer() -> None:
    assert not any(tinted([10.0, 10, 10, 10, 90], "elapsed_ns", "layer", NO_LABEL_TEXT))


def test_a_utilisation_has_fixed_thresholds() -> None:
    found = tinted([100.0, 81, 79, 49, NAN], "gfx_util_pct", "kernel")
    assert found == [0, 0, Tint.POOR, Tint.VERY_POOR, 0]


def test_a_difference_is_tinted_by_its_sign_and_size() -> None:
    percent = computed_column("x_pct", "%", "Δ %", "A difference.", signed=True)
    expected = [0, Tint.ABOVE, Tint.FAR_ABOVE, Tint.BELOW, Tint.FAR_BELOW, 0]
    assert tinted([0.5, 2, 9, -2, -9, NAN], percent, "operation") == expected
    time = computed_column("x_ns", "ns", "Δ", "A difference.", signed=True)
    assert tinted([1000.0, 100, 1, -300, 0], time, "operation") == [
        *(Tint.FAR_ABOVE, Tint.ABOVE, 0, Tint.FAR_BELOW, 0)
    ]
    # Noise alone: none is worth a look, however large it is beside the others.
    assert not any(tinted([0.1, -0.1, 0.05, 0.0], time, "operation"))
