"""Determinism: how steady clocks, power and durations are, and whether a baseline's are steadier.

Without deterministic memory use (FSDP1's frees wait for other streams) clocks are lower and less
steady, as the Chopper paper found.
Whether two sets of figures differ by more than chance is tested exactly, on ranks.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.base import baseline_of
from chopper_core.analyses.rows import GpuRows, LabelledRows, Own
from chopper_core.analyses.significance import FEWEST_PAIRS, LEVEL, adjusted, paired, unpaired
from chopper_core.analyses.steadiness import (
    FIGURES,
    Steadiness,
    SteadinessFigure,
    complete_gpus,
    sampled_steadiness,
    steadiness,
)
from chopper_core.columns import column, numbered, worded
from chopper_core.columns.derived import delta_of
from chopper_core.columns.labels import LABELS
from chopper_core.model.phrases import count, facts
from chopper_core.model.run import Run
from chopper_core.model.view import View, as_statistic, child_of, pivot
from chopper_core.util.arrays import Float64
from chopper_core.util.errors import NoSuchNode, UsageError
from chopper_core.util.grouping import median_of
from chopper_core.views.shared.table_view import known_columns
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="determinism",
    title="GPUs · steadiness",
    question="How steady are clocks, power and durations? Does the baseline differ beyond noise?",
    by=("gpu", "figure"),
    compares=True,
    no_statistic="shows statistics over steps already: how steady they are",
    takes_samples=True,
)

WITHIN_NOISE: Final = "within noise"
TOO_FEW: Final = "too few to tell"
_SHOWN: Final = {
    "steady_gfx_mhz": "clock",
    "steady_sd_gfx_mhz": "clock varies by",
    "kernel_spread_pct": "a kernel's duration varies by",
    "power_spread_pct": "a kernel's power varies by",
    "steady_sd_mem_mhz": "memory clock varies by",
    "iteration_time_ns": "median step",
}
"""Figures that are shown, and what the headline calls them."""

OURS: Final = column("""here | | here
    Median of the figure over the GPUs, in the unit of the row.""")
BASE: Final = column("""baseline | | baseline
    The same in the baseline.""")
CHANGE: Final = column("""change_pct | % | change | signed
    Difference from the baseline's median, in % of it.
    missing: the baseline's median is 0 or unknown""")
CHANCE: Final = column(f"""p | | p
    Probability that chance alone makes the two differ as much or more: Wilcoxon's signed-rank
    test over the GPUs that both have, exact; with fewer than {FEWEST_PAIRS} of them, and for
    step times, which GPUs share, the Wilcoxon-Mann-Whitney test over (GPUs and)
    steps.
    missing: too few GPUs and steps for any result to be beyond noise""")
TOGETHER: Final = column(f"""q | | q
    p adjusted for the number of tested figures (Benjamini-Hochberg): of those below {LEVEL:g},
    called beyond noise, at most that share is wrong on average.
    missing: as p""")
PAIRS: Final = column("""compared | | compared
    The GPUs, or GPUs and steps, compared.""")
VERDICT: Final = column(f"""verdict | | verdict
    Result of the test: beyond noise if q is below {LEVEL:g}.""")


class Compared(Struct, frozen=True):
    """A figure of both runs, and the result of its test."""

    figure: SteadinessFigure
    ours: float
    base: float
    p: float = np.nan
    pairs: str = ""
    q: float = np.nan
    """p adjusted for the number of figures."""

    @property
    def change_pct(self) -> float:
        return 100.0 * (self.ours / self.base - 1) if self.base else np.nan

    @property
    def verdict(self) -> str:
        if not np.isfinite(self.q):
            return TOO_FEW
        if self.q >= LEVEL or self.ours == self.base:
            return WITHIN_NOISE
        words = ("steadier", "less steady") if self.figure.is_spread else ("lower", "higher")
        return words[int(self.ours > self.base)]


def answer(run: Run, view: View) -> ViewResult:
    ours, base = _both(run, view)
    compared = [] if base is None else _compared(ours, base)
    by = view.by or "gpu"
    if by == "figure":
        labels, own = _by_figure(ours, compared)
    else:
        labels, own = _by_gpu(run, by, ours, base)

    def opens(row: int) -> View:
        """The kernels of the row's GPU whose time differs most from step to step."""
        inside = view if by == "figure" else child_of(view, by, labels[row])
        spread = ours.values.get("kernel_spread_pct")
        if by != "gpu" or spread is None or not np.isfinite(spread).any():
            return inside
        kernels = as_statistic(pivot(inside, "kernel"), "spread", ("iteration",))
        return replace(kernels, sort="-elapsed_ns")

    is_few = by != "figure" and base is not None
    first = [name for each in _SHOWN for name in (each, f"{each}_base")] if is_few else ()
    return ViewResult(
        LabelledRows(by, labels),
        columns=tuple(own),
        opens=opens,
        shown=known_columns(own, first),
        headline=_headline(ours, base, compared, view),
        notes=_notes(ours, base),
    )


def _both(run: Run, view: View) -> tuple[Steadiness, Steadiness | None]:
    """The steadiness of a scope, and that of its baseline; raises NoSuchNode or UsageError."""
    if view.baseline is None:
        alone = sampled_steadiness(run) if run.is_sampled_only else steadiness(run, view, False)
        return alone, None
    plain, (other, there) = replace(view, baseline=None), baseline_of(run, view)
    if run.is_sampled_only:
        if not other.is_sampled_only:
            raise UsageError("the baseline has a trace: compare runs of telemetry alone")
        return sampled_steadiness(run), sampled_steadiness(other)
    try:
        common = set(complete_gpus(run, plain)) & set(complete_gpus(other, there))
    except NoSuchNode as error:
        raise NoSuchNode(f"the baseline lacks this node: {error}") from None
    # GPUs and iterations are compared where GPUs are too few.
    is_few = len(common) < FEWEST_PAIRS
    return steadiness(run, plain, is_few), steadiness(other, there, is_few)


def _by_gpu(run: Run, by: str, ours: Steadiness, base: Steadiness | None) -> tuple[list[str], Own]:
    rows = GpuRows.of(run, ours.gpus, by)
    own: Own = []
    for figure in FIGURES:
        metric = figure.metric
        if by != "gpu":
            text = f"{metric.definition} The median of the row's GPUs."
            metric = replace(metric, definition=text)
        values = rows.reduced(ours.values[metric.name], median_of)
        own.append((metric, numbered(values)))
        if base is None:
            continue
        theirs = rows.reduced(_aligned(base, metric.name, ours.gpus), median_of)
        of_base = replace(
            metric,
            name=f"{metric.name}_base",
            title=f"{metric.title} base",
            definition=f"{metric.name} of the same GPU in the baseline.",
        )
        own += [(of_base, numbered(theirs)), (delta_of(metric), numbered(values - theirs))]
    return rows.labels, own


def _aligned(base: Steadiness, name: str, gpus: tuple[int, ...]) -> Float64:
    """The baseline's figure of each GPU; NaN if it has no such GPU.

    If both have a single GPU, the two are compared whatever their numbers.
    """
    if len(gpus) == len(base.gpus) == 1:
        return base.values[name]
    found = dict(zip(base.gpus, base.values[name].tolist(), strict=True))
    return np.array([found.get(gpu, np.nan) for gpu in gpus])


def _compared(ours: Steadiness, base: Steadiness) -> list[Compared]:
    found = []
    base_medians = dict(base.medians())
    for figure, median in ours.medians():
        if figure not in base_medians:
            continue
        name = figure.metric.name
        # GPUs that wait for each other share the times of steps: no separate samples.
        is_shared = name.startswith("iteration")
        own, theirs = ours.values[name], _aligned(base, name, ours.gpus)
        p, of = np.nan, "1 and 1 run"
        if not is_shared:
            p, of = paired(own, theirs), count(int(np.isfinite(own - theirs).sum()), "GPU")
        if not np.isfinite(p) and name in ours.cells and name in base.cells:
            cells = ours.cells[name], base.cells[name]
            p = unpaired(*cells)
            of = f"{len(cells[0])} and {len(cells[1])} steps"
            of += "" if is_shared else " of GPUs"
        found.append(Compared(figure, median, base_medians[figure], p, of))
    together = adjusted(np.array([each.p for each in found]))
    return [replace(each, q=float(q)) for each, q in zip(found, together, strict=True)]


def _by_figure(ours: Steadiness, compared: list[Compared]) -> tuple[list[str], Own]:
    rows = compared or [Compared(each, value, np.nan) for each, value in ours.medians()]
    own: Own = [
        (OURS, numbered([row.ours / row.figure.scale[0] for row in rows])),
        (BASE, numbered([row.base / row.figure.scale[0] for row in rows])),
        (LABELS["unit"], worded([row.figure.scale[1] for row in rows])),
        (CHANGE, numbered([row.change_pct for row in rows])),
        (CHANCE, numbered([row.p for row in rows])),
        (TOGETHER, numbered([row.q for row in rows])),
        (PAIRS, worded([row.pairs for row in rows])),
        (VERDICT, worded([row.verdict for row in rows])),
    ]
    own = own if compared else [own[0], own[2]]
    return [row.figure.metric.name for row in rows], own


def _headline(
    ours: Steadiness, base: Steadiness | None, compared: list[Compared], view: View
) -> tuple[str, ...]:
    if base is None:
        medians = [
            f"{_SHOWN[figure.metric.name]} {value / figure.scale[0]:.4g} {figure.scale[1]}"
            for figure, value in ours.medians()
            if figure.metric.name in _SHOWN and value
        ]
        if not medians:
            unknown = "no complete step in the scope: steadiness is unknown"
            return () if ours.medians() else (unknown,)
        gpus = len(ours.gpus)
        return (facts(*medians, f"medians of {gpus} GPUs" if gpus > 1 else ""),)
    if not compared:
        return ("no common figure: one of the scopes has no complete step",)
    tested = [each for each in compared if each.verdict != TOO_FEW]
    beyond = [each for each in tested if each.verdict != WITHIN_NOISE]
    name = (view.baseline.run if view.baseline else "") or "the baseline"
    if not tested:
        return (f"too few GPUs and steps to compare with {name}",)
    if not beyond:
        return (f"none of {len(tested)} figures differs from {name} beyond noise",)
    most = max(each.q for each in beyond)
    verdicts = Counter(each.verdict for each in beyond)
    return (
        facts(
            f"{len(beyond)} of {len(compared)} figures differ from {name} beyond noise",
            f"q {most:.2g} or less",
            *(f"{number} {verdict}" for verdict, number in verdicts.items()),
        ),
    )


def _notes(ours: Steadiness, base: Steadiness | None) -> tuple[str, ...]:
    notes = []
    both = [(ours, "here")] if base is None else [(ours, "here"), (base, "in the baseline")]
    for each, where in both:
        if len(each.compared) < len(each.iterations):
            notes.append(
                f"kernels are compared over {len(each.compared)} of {len(each.iterations)} "
                f"steps {where}, evenly chosen"
            )
        if not each.is_stepped:
            notes.append(f"no trace {where}: figures are over the window of the samples")
        elif len(each.compared) < 2:
            notes.append(f"fewer than two complete steps {where}: no spread over steps")
    if base is None:
        return (*notes, "base=RUN compares with another run")
    return (
        *notes,
        "the test is over GPUs of one run each: it does not cover the difference between runs "
        "with the same settings",
    )
