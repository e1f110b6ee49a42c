"""Columns of the samples of power, clocks and heat in the time of any rows of activities."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from chopper_core.analyses.sample_definitions import (
    DECLARED,
    MOST_SAMPLED,
    OF_ROWS,
    text_of_several,
)
from chopper_core.columns.metric import Metric, Scope, Values, absent, register, register_other


def _figure(name: str, scope: Scope) -> Values:
    # Loaded here: most screens show no samples.
    from chopper_core.analyses.power_samples import RowSamples

    nodes, run = scope.nodes, scope.run
    if run is None or not run.measured or not len(run.table):
        return absent(len(nodes))
    if "samples" not in nodes.memo:
        nodes.memo["samples"] = RowSamples.of(run, nodes)
    found: RowSamples | None = nodes.memo["samples"]
    return absent(len(nodes)) if found is None else found.figure(name)


def _register(name: str, declared: Metric) -> None:
    """Make a column of samples one of every view, but for those that compare rows."""
    if name in OF_ROWS:
        register_other(declared)
        return
    metric = replace(
        declared,
        definition=declared.definition + text_of_several(name),
        missing_because=f"{declared.missing_because}, or more than {MOST_SAMPLED:,} rows of a GPU",
        compute=partial(_figure, name),
    )
    register(metric)


for _name, _metric in DECLARED.items():
    _register(_name, _metric)
