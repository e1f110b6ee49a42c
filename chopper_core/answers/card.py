"""The card of a run: what it is, how far it can be trusted, and what can be asked, in 2 kB."""

from __future__ import annotations

from typing import Any, Final

from chopper_core.answers.runner import Runner
from chopper_core.model.run import Run
from chopper_core.model.table import LABELLED, activity_count
from chopper_core.model.view import View, with_view
from chopper_core.render.exchange import finite, json_text, rounded
from chopper_core.render.info import coverage_of, missing_of, numbers_text
from chopper_core.util.escape import cut_text
from chopper_core.views import OVERVIEW, RUNS, VIEWS
from chopper_core.views.spec import SeveralRuns

MAX_CARD_BYTES: Final = 1_900
"""Of 2 kB, as the server adds a line."""
_FINDINGS: Final = 5
_MAX_TEXT: Final = 200
_LONG_NAME: Final = 100
_LIVE: Final = "live"


def card(runner: Runner, view: View) -> dict[str, Any]:
    """What a run is: quality, levels, steps, the first findings, what can be asked.

    Its JSON has at most `MAX_CARD_BYTES`; findings, and then other lists, are cut to that.
    """
    run = runner.run_of(view)
    if isinstance(run, SeveralRuns):
        return {
            "run": run.name,
            "runs": list(run.others)[:20],
            "ask": f"?view={RUNS} has a row per run; name one of them as the run of an address",
        }
    overview = runner.frame(with_view(View(view.run, overrides=view.overrides), OVERVIEW))
    found: dict[str, Any] = {
        "run": _short(run.name),
        "headline": [_short(text) for text in overview.headline],
        "marks": list(run.marks),
        "quality": [_short(doubt.sentence) for doubt in run.doubts] or "no doubts",
        "lacks": [_short(text) for text in missing_of(run)],
        "steps": _steps(run),
        "levels": _levels(run),
        "findings": _findings(runner, view),
        "ask": "views: " + ", ".join(name for name in VIEWS if name != _LIVE),
    }
    return _fitting({name: each for name, each in found.items() if each})


def _steps(run: Run) -> dict[str, Any]:
    if not run.table.has_times or not len(run.table):
        return {}
    every = {int(code) for code in run.pairs.codes("iteration") if code >= 0}
    counted = sorted(every - run.cut_iterations)
    return {
        "counted": numbers_text(counted),
        "truncated": numbers_text(sorted((run.cut_iterations - run.warm_up) & every)),
        "warm_up": numbers_text(sorted(run.warm_up)),
    }


def _levels(run: Run) -> dict[str, Any]:
    """GPUs, activities, and the share of GPU time that each level labels."""
    what = "sampling_intervals" if run.is_sampled_only else "activities"
    found: dict[str, Any] = {"gpus": len(run.gpus), what: activity_count(run.table)}
    if not run.is_sampled_only:
        found |= {
            f"{level}_pct": round(coverage_of(run, level)["labelled_pct"], 1) for level in LABELLED
        }
    return found


def _findings(runner: Runner, view: View) -> list[dict[str, Any]]:
    frame = runner.frame(View(view.run, name="findings", overrides=view.overrides))
    found = []
    for row in range(min(len(frame), _FINDINGS)):
        figures = frame.row(row)
        found.append(
            {
                "title": _short(frame.labels[row]),
                **{
                    name: rounded(finite(figures[name]))
                    for name in ("cost_ns", "cost_of", "saving_ns", "confidence")
                    if figures.get(name) is not None
                },
                "address": _below(frame.addresses(row), view.run),
            }
        )
    return found


def _below(address: str, run: str) -> str:
    """An address, of a run with a long name without it: below the run that was opened last."""
    return address.removeprefix(run) if len(run) > _LONG_NAME else address


def _short(text: str) -> str:
    return cut_text(text, _MAX_TEXT)


def _fitting(found: dict[str, Any]) -> dict[str, Any]:
    """A card cut to its size: the last findings first, then the last of other lists."""
    for name in ("findings", "lacks", "quality", "headline"):
        while len(json_text(found).encode()) > MAX_CARD_BYTES and isinstance(found.get(name), list):
            found[name] = found[name][:-1]
            found["more"] = "cut to 2 kB; the views findings and overview have all"
            if not found[name]:
                del found[name]
    return found
