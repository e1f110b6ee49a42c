"""What a word of a screen or an answer means: a metric, a column of a view, a term, a view."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from chopper_core.columns import METRICS, OTHER_COLUMNS, Metric
from chopper_core.model.glossary import OPERATIONS, TERMS
from chopper_core.model.run import Run
from chopper_core.render.tables import TABLE_NAMES, run_table
from chopper_core.util.errors import ChopperError
from chopper_core.views import VIEWS, view_spec, view_specs

_NEAREST: Final = 5
_NONE: Final[Mapping[str, Metric]] = {}


def define(
    word: str, run: Run | None = None, shown: Mapping[str, Metric] = _NONE
) -> dict[str, Any]:
    """What a word is; `{"unknown": …}` with the nearest ones for one that nothing is called.

    `shown` are the columns of answers, of which some are made for the answer: `elapsed_ns_delta`.
    """
    wanted = word.strip()
    view_specs()  # Their modules register the columns of views.
    words = (*METRICS, *OTHER_COLUMNS, *shown, *TERMS, *OPERATIONS, *VIEWS, *TABLE_NAMES)
    known = {each.lower(): each for each in words}
    name = known.get(wanted.lower(), wanted)
    found = [*_meanings(name, run, shown)]
    if found:
        return {"word": name, "meanings": found}
    near = get_close_matches(wanted.lower(), known, _NEAREST, 0.5)
    hint = f"; the nearest are {', '.join(known[each] for each in near)}" if near else ""
    return {"unknown": f"no metric, column, term, view or table is called {wanted}{hint}"}


def _meanings(name: str, run: Run | None, shown: Mapping[str, Metric]) -> Iterator[dict[str, str]]:
    if name in METRICS:
        yield _of_metric("metric", METRICS[name])
    elif name in OTHER_COLUMNS:
        other = OTHER_COLUMNS[name]
        yield _of_metric(f"column of {other.rows}" if other.rows else "column of a view", other)
    elif name in shown:
        yield _of_metric("column of a view", shown[name])
    elif run is not None and (counter := _counter(name, run)):
        yield _of_metric("hardware counter", counter)
    if name in TERMS:
        yield {"kind": "term", "definition": TERMS[name]}
    if name in OPERATIONS:
        yield {"kind": "operation", "definition": OPERATIONS[name]}
    if name in VIEWS:
        spec = view_spec(name)
        by = f" by: {', '.join(spec.by)}" if spec.by else ""
        yield {"kind": "view", "definition": f"{spec.title}: {spec.question}{by}"}
    if name in TABLE_NAMES:
        yield {"kind": "table of SQL", "definition": run_table(name).about}


def _counter(name: str, run: Run) -> Metric | None:
    from chopper_core.columns import metric_named

    try:
        return metric_named(name, run.table, run.counter_info)
    except ChopperError:
        return None


def _of_metric(kind: str, metric: Metric) -> dict[str, str]:
    found = {
        "kind": kind,
        "title": metric.title,
        "unit": str(metric.unit),
        "definition": metric.definition,
        "of children": str(metric.reduces),
        "missing": metric.missing_because,
        "source": metric.source,
    }
    return {name: text for name, text in found.items() if text}
