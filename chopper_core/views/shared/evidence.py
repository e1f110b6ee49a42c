"""The overview's cards, with the addresses of their evidence: findings, changes, why a GPU lags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.leads import RankLeads, leads
from chopper_core.analyses.opportunities import opportunities
from chopper_core.analyses.step_account import step_of
from chopper_core.columns import METRICS, heat_of
from chopper_core.model import address
from chopper_core.model.charts import Card, Composition, StepBars
from chopper_core.model.glossary import TERMS
from chopper_core.model.phrases import facts, others, time
from chopper_core.model.run import Run
from chopper_core.model.view import Baseline, View, with_view
from chopper_core.util.errors import UsageError
from chopper_core.util.escape import clean
from chopper_core.views.frame import Frame
from chopper_core.views.shared.told_findings import ranges, told, unknown_in_short

_LEAST_SHARE: Final = 0.001
"""Of the step; a smaller change is not worth a card."""
_LEAST_LAG: Final = 0.002
"""Of the step: a smaller lag or cause is none."""
_LEAST_CLOCK_RATIO: Final = 0.01
_LEAST_DEGREES: Final = 3.0
_LEAST_THROTTLED_PCT: Final = 10.0
_LIMIT: Final = "missing"
"""The rule of findings about what isn't known."""
_REAL_PCT: Final = 1.0
_FEW: Final = 3
"""With fewer findings of that share of the step, opportunities follow them."""


def finding_cards(run: Run, view: View, limit: int) -> tuple[Card, ...]:
    """Findings, then opportunities where there are few, and one line of what isn't known."""
    from chopper_core.findings.rule import Group

    found = told(run, view)
    cards, limits = list[Card](), list[tuple[str, str]]()
    group = Group.FIX.text
    for each in found:
        if each.rule == _LIMIT:
            what = each.brief.partition(": ")[0].partition(", ")[0]
            limits.append((what, " ".join(each.advice)))
            continue
        text, opens = ("└ " if each.is_part else "") + each.title, address.render(each.evidence)
        heading = "" if each.group == group else each.group
        group, share, sure = each.group, each.share_pct, each.confidence
        cards.append(Card(each.figures, text, opens, "", share, sure, each.rule, heading))
    is_quiet = not run.is_sampled_only and sum(each.share_pct >= _REAL_PCT for each in cards) < _FEW
    if is_quiet:
        has_products = any(each.rule == "products" for each in found)
        cards += opportunities(step_of(run, view), has_products=has_products)
    shown = address.render(replace(with_view(view, "findings"), filter=f"rule:{_LIMIT}"))
    if is_quiet and len(cards) < _FEW:
        notes = [f"limit: {what}. {how}".removesuffix(". ") for what, how in limits]
    else:
        notes = [f"limits: {'; '.join(what for what, _ in limits)}"] if limits else []
    cards += (Card((), "", shown, note) for note in notes)
    return tuple(cards[:limit])


def number_of_findings(run: Run, view: View) -> str:
    """As the view of findings counts them, those of what isn't known too: `5 with 3 parts`; and of
    how much of the step no cause is known."""
    from chopper_core.findings import count_findings

    found = told(run, view)
    number, parts = count_findings([each.is_part for each in found])
    return facts(f"{number or 'none'}{parts}", unknown_in_short(found))


Explained = list[tuple[str, str]]
"""Words, and what they mean."""


def explained_column(frame: Frame, sort: str, part: str = "") -> Explained:
    """The sorted column of a frame, else its first, or the part of the bar that is one."""
    columns = {each.name: each for each in (*frame.columns, *METRICS.values())}
    column = columns.get(sort.removeprefix("-"), next(iter(frame.columns), None))
    if column is None:
        return []
    text = f"{TERMS.get(part, column.definition)} Source: {column.source}. [{column.name}]"
    opens = "opens the operations with this part, largest first" if part else "opens the row"
    if part and not frame.view.name:
        opens = "sorts the rows by this state of time"
    lines = [(part or column.title, text), ("missing", column.missing_because)]
    bars = (chart for chart in frame.charts if isinstance(chart, Composition))
    lines += [(f"~ {each.some}", TERMS["~ before a part"]) for each in bars if part in each.divided]
    return [line for line in (*lines, ("enter", opens)) if line[1]]


def explained_step(bars: StepBars, place: int) -> Explained:
    """A bar of the chart of steps, and what a mark below it means."""
    lines = [
        (f"step {bars.steps[place]:,}", bars.described(place)),
        ("time", "until the next step begins: the mean over ranks, or over GPUs in a trace"),
        ("traced", "the profiler recorded the step, and its trace was read"),
    ]
    return [*lines, *([("enter", "opens the step in its trace")] if place in bars.traced else [])]


def explained_finding(run: Run, view: View, card: Card) -> Explained:
    """A finding in full, what its rule looks for, its thresholds, and what its figures are."""
    from chopper_core.findings import rules_of

    lines = [("enter", f"opens the evidence, {clean(card.address)}")]
    rules = {each.name: each for each in rules_of(run)}
    for place, finding in enumerate(told(run, view)):
        if finding.title != card.text.removeprefix("└ ") or finding.rule not in rules:
            continue
        rule, ends = rules[finding.rule], ""
        whose = f"; here {finding.figures[0]}, {finding.cost_of}" if finding.cost_of else ""
        low, high = ranges(run, view)[place] if finding.remedy else (None, None)
        if low is not None and high is not None:
            ends = f"; {time(round(low))} to {time(round(high))} for steps run again without it"
        found = [
            (finding.title, finding.detail),
            *(("try", each) for each in finding.advice),
            (f"rule {rule.name}", rule.looks_for),
            ("costs", f"{rule.cost}{whose}"),
            *([("saves", f"by replay of: {finding.remedy}{ends}")] if finding.remedy else []),
            *lines,
        ]
        return [*found, *((e.name, f"{e.value:g} {e.unit}: {e.why}") for e in rule.thresholds)]
    return lines


def changes(run: Run, view: View, limit: int) -> tuple[Card, ...]:
    """The operations whose time per GPU and step changed most from the baseline."""
    from chopper_core.analyses.sides import opens_of, sides_of

    asked = replace(with_view(view, "compare"), is_total=False)
    both = sides_of(run, asked)
    now, before = (each.known(0.0) for each in both.values(METRICS["elapsed_ns"]))
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
        share = f"{100 * change[row] / max(float(before.sum()), 1.0):+z.1f} %"
        figures = (share, sign + time(abs(change[row])))
        cards.append(Card(figures, text, address.render(opens_of(both, row))))
    return tuple(cards)


def _as_long(now: float, before: float) -> str:
    if now >= 2 * before:
        return f"{now / before:.1f} times as long"
    word = "longer" if now > before else "less time"
    return f"{abs(100 * (now / before - 1)):.1f} % {word}"


def causes_of(run: Run, view: View, gpu: int | None = None) -> tuple[int, tuple[Card, ...]]:
    """A GPU of the run, by default the straggler, and why it is late, from effect to cause.

    Raises UsageError where GPUs can't be compared, NoSuchNode for one that isn't there.
    """
    root = View(view.run, signal=view.signal, overrides=view.overrides)
    ranks, _ = leads(run, root)
    gpu = ranks.gpus[ranks.behind] if gpu is None else gpu
    run.tree().node((str(gpu),))
    place = ranks.gpus.index(gpu) if gpu in ranks.gpus else None
    if place is None or np.isnan(ranks.lag_ns[place]):
        raise UsageError(f"GPU {gpu} has no compute that the others have too")
    lag_ns = float(ranks.lag_ns[place])
    least_ns = _LEAST_LAG * ranks.typical_ns
    evidence = replace(root, name="ranks", sort="mean_lead_ns")
    if lag_ns < least_ns:
        late = f"it starts the same kernels {time(lag_ns)} after the first"
        if not lag_ns:
            late = "it is the first to start the same kernels"
        return gpu, (_card(f"GPU {gpu} keeps pace: {late}", evidence),)
    cards = [
        _card(f"GPU {gpu} starts the same kernels {time(lag_ns)} after the first GPU", evidence)
    ]
    longer_ns, peers = float(ranks.extra("same")[place]), ranks.peers_of(place).gpus
    if longer_ns > least_ns:
        work_ns = ranks.mean("same")
        usual_ns = float(work_ns[place]) - longer_ns
        typical = min(peers, key=lambda each: abs(work_ns[ranks.gpus.index(each)] - usual_ns))
        text = (
            f"its kernels take {100.0 * longer_ns / usual_ns:.1f} % longer, {time(longer_ns)} per "
            f"step beyond the median of {others(len(peers) - 1)}; GPU {typical} is nearest to it"
        )
        baseline = Baseline("", (str(typical),))
        of_gpu = replace(root, path=(str(gpu),), name="compare", baseline=baseline)
        cards += [_card(text, of_gpu), *_hardware(ranks, place, root)]
    for name, when in (("host", "before"), ("launch", "after")):
        idle_ns = float(ranks.extra(name)[place])
        if idle_ns > least_ns:
            text = f"it is idle {time(idle_ns)} per step longer {when} launch calls"
            sort = f"-idle_{name}_ns"
            cards.append(_card(text, replace(root, path=(str(gpu),), name="launch", sort=sort)))
    return gpu, tuple(cards)


def _hardware(ranks: RankLeads, place: int, root: View) -> Iterator[Card]:
    clocks = ranks.metric("gfx_mhz")
    mhz, usual = (float(each[place]) for each in (clocks, ranks.peers_median(clocks)))
    if mhz < (1 - _LEAST_CLOCK_RATIO) * usual:
        text = f"its clock is {mhz:,.0f} MHz, the others' {usual:,.0f}"
        yield _card(text, _by(root, "gfx_mhz"))
    throttled = float(ranks.metric("throttle_pct")[place])
    if throttled >= _LEAST_THROTTLED_PCT:
        power = replace(root, name="power", signal="throttle_pct", sort="-throttled_pct")
        yield _card(f"it is throttled {throttled:.0f} % of the time", power)
    beyond, at_edge = ranks.hotter(place)
    if beyond >= _LEAST_DEGREES:
        heat = heat_of(ranks.table)
        degrees, spot = float(ranks.metric(heat)[place]), "edge" if at_edge else "hotspot"
        text = f"its {spot} has {degrees:.0f} °C, the others' {degrees - beyond:.0f} °C"
        yield _card(text, _by(root, f"-{heat}"))


def _by(root: View, sort: str) -> View:
    name = sort.removeprefix("-")
    return replace(root, columns=("elapsed_ns", name), sort=sort)


def _card(text: str, evidence: View) -> Card:
    return Card((), text, address.render(evidence))
