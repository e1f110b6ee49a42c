"""The overview's cards: the findings of a scope, or what changed most from its baseline."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.metrics import METRICS
from chopper_core.model import address
from chopper_core.model.charts import Card
from chopper_core.model.run import Run
from chopper_core.model.view import View, with_view
from chopper_core.views.shared.phrases import time

_LEAST_SHARE: Final = 0.001
"""Of the step; a smaller change is not worth a card."""


def findings(run: Run, view: View, limit: int) -> tuple[Card, ...]:
    """The first findings of a scope: potential saving, share of the step, sentence."""
    from chopper_core.views.frames import answer

    found = answer(run, with_view(view, "findings"))
    columns = {metric.name: values for metric, values in found.columns}
    cards = []
    for row, sentence in enumerate(found.labels[:limit]):
        saving, share = columns["stake_ns"].at(row), columns["stake_pct"].at(row)
        figures = () if saving is None or share is None else (f"{share:.1f} %", time(saving))
        cards.append(Card(figures, sentence, address.render(found.opens(row))))
    return tuple(cards)


def changes(run: Run, view: View, limit: int) -> tuple[Card, ...]:
    """The operations whose time per GPU and iteration changed most from the baseline."""
    from chopper_core.views.compare import answer
    from chopper_core.views.compare.sides import sides_of

    asked = with_view(view, "compare")
    both, found = sides_of(run, asked), answer(run, asked)
    ours, base = both.values(METRICS["elapsed_ns"])
    steps = (1, 1) if both.is_per_step else (both.ours.steps, both.base.steps)
    now = np.where(ours.present(), ours.numbers, 0) / steps[0]
    before = np.where(base.present(), base.numbers, 0) / steps[1]
    change = now - before
    least = _LEAST_SHARE * max(float(before.sum()), float(now.sum()))
    order = np.argsort(-np.abs(change), kind="stable")[:limit]
    cards = []
    for row in order.tolist():
        if abs(change[row]) < least:
            continue
        name = both.pairs.labels[row]
        if not before[row]:
            text = f"{both.by} {name} is new: {time(now[row])}"
        elif not now[row]:
            text = f"{both.by} {name} is removed: it took {time(before[row])}"
        else:
            text = (
                f"{both.by} {name} takes {_as_long(now[row], before[row])}: "
                f"{time(before[row])} → {time(now[row])}"
            )
        sign = "+" if change[row] > 0 else "-"
        share = f"{100 * change[row] / max(float(before.sum()), 1.0):+.1f} %"
        figures = (share, sign + time(abs(change[row])))
        cards.append(Card(figures, text, address.render(found.opens(row))))
    return tuple(cards)


def _as_long(now: float, before: float) -> str:
    """How much longer something takes than before."""
    if now >= 2 * before:
        return f"{now / before:.1f} times as long"
    word = "longer" if now > before else "less time"
    return f"{abs(100 * (now / before - 1)):.1f} % {word}"
