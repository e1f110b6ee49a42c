"""The columns of Compare: both sides, what differs, and why: more of it or longer, which state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import Metric, Values, column, is_measured, metric, worded
from chopper_core.model.table import STATES
from chopper_core.query.comparison import DELTA, delta_of, difference, relative, relative_of
from chopper_core.views.compare.sides import SUM, Halves

USUAL: Final = "elapsed_ns"
_MEASURED: Final = ("gfx_mhz", "mfma_util_pct", "power_w")

SHARE: Final = column(
    "of_change_pct",
    "%",
    "of Δ",
    "The row's part of all differences: its difference in % of the sum of their sizes, whichever "
    "way they go.",
    missing_because="nothing differs",
    signed=True,
)
PARTNER: Final = column(
    "partner",
    "",
    "partner",
    "`only here` or `only base` of a row without a partner; the name that a kernel has in the "
    "baseline, where it is another one.",
    missing_because="the row has a partner of the same name",
)

Columns = list[tuple[Metric, Values]]


def columns_of(both: Halves, figure: Metric) -> Columns:
    """Every figure of the rows, the most telling first."""
    ours, base = both.sides(figure)
    change = difference(figure, ours, base)
    found: Columns = [
        (_of_step(figure, both), ours),
        (delta_of(figure), change),
        (relative_of(figure), relative(ours, base)),
        (SHARE, _share(change)),
    ]
    pairs = both.pairs
    if (pairs.ours < 0).any() or (pairs.base < 0).any() or any(pairs.partners):
        found.append((PARTNER, _partners(both)))
    measured = [
        name
        for name in _MEASURED
        if all(is_measured(name, half.run.table) for half in (both.ours, both.base))
    ]
    found += [_changed(both, name) for name in measured[:1]]
    found.append((_of_step(_in_base(figure), both), base))
    found += _effects(both, figure, ours, base)
    others = [*measured[1:], *(STATES if figure.name == USUAL else ()), "kernels"]
    return [*found, *(_changed(both, name) for name in others if name != figure.name)]


def _changed(both: Halves, name: str) -> tuple[Metric, Values]:
    known = metric(name)
    return delta_of(known), difference(known, *both.sides(known))


def change_of(both: Halves, figure: Metric) -> float:
    """The difference of the two nodes themselves."""
    ours, base = both.wholes(figure)
    return (ours or 0) - (base or 0)


def totals(both: Halves, figure: Metric, columns: Columns) -> Mapping[str, int | float]:
    """The two nodes' own figures: what the differences of the rows add up to."""
    found: dict[str, int | float] = {}
    ours, base = both.wholes(figure)
    change = change_of(both, figure)
    if ours is not None:
        found[figure.name] = ours
    if base is not None:
        found[_in_base(figure).name] = base
    if base:
        found[relative_of(figure).name] = 100.0 * change / base
    for known, values in columns:
        if known is SHARE and values.present().all():
            found[known.name] = float(values.numbers.sum())
        elif known.name.endswith(DELTA):
            own = metric(known.name.removesuffix(DELTA), both.ours.run.table)
            left, right = both.wholes(own)
            if own.reduces == SUM:
                found[known.name] = (left or 0) - (right or 0)
            elif left is not None and right is not None:
                found[known.name] = left - right
        elif known.reduces == SUM and known.name.startswith(("number_", "each_")):
            found[known.name] = float(values.numbers.sum())
    return found


def written(figure: Metric, number: float, *, signed: bool = False) -> str:
    """A figure in a sentence."""
    sign = "+" if signed else ""
    if figure.unit == "ns":
        return f"{number / 1e6:{sign}.3f} ms"
    text = f"{number:{sign}.4g}"
    return f"{text} {figure.unit}" if figure.unit else text


def _in_base(figure: Metric) -> Metric:
    return replace(
        figure,
        name=f"base_{figure.name}",
        title="base",
        definition=f"{figure.name} of the row in the baseline.",
    )


def _of_step(known: Metric, both: Halves) -> Metric:
    if not both.is_per_step:
        return known
    return replace(known, definition=f"{known.definition} Here of one GPU's iteration.")


def _share(change: Values) -> Values:
    numbers = change.numbers.astype(np.float64)
    sizes = float(np.abs(numbers).sum())
    if not sizes:
        return Values(np.full(len(numbers), np.nan), np.ones(len(numbers), np.bool_))
    return Values(100.0 * numbers / sizes, change.missing)


def _partners(both: Halves) -> Values:
    pairs = both.pairs
    places = zip(pairs.ours.tolist(), pairs.base.tolist(), pairs.partners, strict=True)
    return worded(
        [
            "only base" if ours < 0 else "only here" if base < 0 else partner or None
            for ours, base, partner in places
        ]
    )


def _effects(both: Halves, figure: Metric, ours: Values, base: Values) -> Columns:
    """A difference as that of more activities and that of larger ones; the two add up to it."""
    if figure.name == "kernels":
        return []
    now, before = (_numbers(each) for each in (ours, base))
    more, fewer = (_numbers(each) for each in both.sides(metric("kernels")))
    paired = (more > 0) & (fewer > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        grown = (more - fewer) * before / fewer
    # Where one side has none, all of the difference is that of the number.
    by_number = np.where(paired, grown, now - before)
    texts = {
        "number": (
            "by number",
            "What of the difference comes from more or fewer activities: their difference in "
            f"number, times {figure.name} of one in the baseline.",
        ),
        "each": (
            "by each",
            f"What of the difference comes from activities with more or less {figure.name} each: "
            "what the difference in number leaves.",
        ),
    }
    numbers = {"number": by_number, "each": now - before - by_number}
    return [
        (
            column(f"{name}_{figure.name}", figure.unit, title, text, reduces=SUM, signed=True),
            Values(numbers[name]),
        )
        for name, (title, text) in texts.items()
    ]


def _numbers(values: Values) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.where(values.present(), values.numbers, 0).astype(np.float64)
