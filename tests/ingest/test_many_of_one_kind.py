"""Traces with very many of one thing: each view answers or says why, in pictures and sentences of a
size that doesn't grow with their number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from chopper_core.findings.rule import low_interval
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.render import info
from chopper_core.util.errors import ChopperError
from chopper_core.views import VIEWS, view_spec
from chopper_core.views.query import query
from tests.limited import within

MANY: Final = 1_200
_STEP_US: Final = 20
_IN_STEP: Final = MANY // 4
_MOST_DRAWN: Final = 400
"""Rows, bars or lines of a picture; its cells are as many as a screen has."""
_LONGEST: Final = 1_000
Event = dict[str, Any]


def _span(category: str, name: str, begin: float, duration: float, **more: Any) -> Event:
    place = {"pid": more.pop("pid", 0), "tid": more.pop("tid", 7)}
    timed = {"ts": begin, "dur": duration, "args": more}
    return {"ph": "X", "cat": category, "name": name, **place, **timed}


def _launch(at: int, *, kernel: str = "", operator: str = "", **more: Any) -> Iterator[Event]:
    """An operator that launches a kernel; each of them may differ in something."""
    begin, thread = _STEP_US * at, {name: more[name] for name in ("pid", "tid") if name in more}
    shape = {"Input Dims": [[at + 1, 16], [16, 32]]} if more.get("is_shaped") else {}
    yield _span("cpu_op", operator or f"aten::op{at % 5}", begin + 1, 8, **shape, **thread)
    number = at // 4 + 1 if more.get("in_graph") else at + 1
    call = "cudaGraphLaunch" if more.get("in_graph") else "cudaLaunchKernel"
    yield _span("cuda_runtime", call, begin + 2, 3, correlation=number, **thread)
    stream = more.get("stream", 7)
    own = {"device": 0, "stream": stream, "correlation": number, **more.get("collective", {})}
    yield _span("kernel", kernel or f"kernel_{at % 5}", begin + 6, 8, tid=stream, **own)


def _range(name: str) -> Callable[[int], Iterator[Event]]:
    def events(at: int) -> Iterator[Event]:
        yield _span("user_annotation", name.format(at), _STEP_US * at + 0.5, 12)
        yield from _launch(at)

    return events


def _collective(at: int) -> Iterator[Event]:
    named = {"Process Group Name": f"pg{at}", "Collective name": "allreduce", "Group size": 2}
    sizes = {"In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "Float"}
    yield from _launch(at, kernel="ncclDevKernel_AllReduce", collective=named | sizes)


def _nested(at: int) -> Iterator[Event]:
    whole = _STEP_US * MANY
    yield _span("user_annotation", f"depth {at}", 0.01 * at, whole - 0.02 * at)
    yield _span("cpu_op", f"deep{at}", 0.01 * at + 0.005, whole - 0.02 * at - 0.01)
    yield from _launch(at)


def _memory(at: int) -> Iterator[Event]:
    own = {"Device Type": 1, "Device Id": 0, "Addr": 512 * at, "Bytes": 512}
    held = {"Total Allocated": 512 * at, "Total Reserved": 1024 * at}
    instant = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]"}
    yield {**instant, "pid": 0, "tid": 7, "ts": _STEP_US * at, "args": own | held}
    yield from _launch(at)


def _counter(at: int) -> Iterator[Event]:
    yield {"ph": "C", "name": f"c{at}", "pid": 0, "ts": _STEP_US * at, "args": {"value": at}}
    yield from _launch(at)


KINDS: Final[dict[str, Callable[[int], Iterator[Event]]]] = {
    "kernels": lambda at: _launch(at, kernel=f"kernel_{at}"),
    "operations": _range("thing{}"),
    "operators": lambda at: _launch(at, operator=f"aten::op{at}"),
    "layers": _range("layer {}"),
    "iterations": _range("ProfilerStep#{}"),
    "shapes": lambda at: _launch(at, operator="aten::mm", is_shaped=True),
    "streams": lambda at: _launch(at, stream=at),
    "threads": lambda at: _launch(at, tid=at),
    "processes": lambda at: _launch(at, pid=at),
    "graphs": lambda at: _launch(at, in_graph=True),
    "process groups": _collective,
    "depths": _nested,
    "allocations": _memory,
    "counters": _counter,
}


def _opened(folder: Path, kind: str) -> Run:
    ranks = 2 if kind == "process groups" else 1
    events = [event for at in range(MANY) for event in KINDS[kind](at)]
    if kind != "iterations":
        events += [
            _span("user_annotation", f"ProfilerStep#{step}", _STEP_US * _IN_STEP * step, 5_999.5)
            for step in range(4)
        ]
    for rank in range(ranks):
        document = {"traceEvents": events, "distributedInfo": {"rank": rank}}
        (folder / f"rank{rank}.json").write_text(json.dumps(document))
    return open_run(str(folder), jobs=1)


def _drawn(chart: Any) -> Iterator[int]:
    """The sizes of what a picture has rows or lines for; lanes are drawn when they are in sight."""
    for name in set(chart.__struct_fields__) - {"lanes", "owners", "pointed"}:
        value = getattr(chart, name)
        if isinstance(value, tuple):
            yield len(value)
        elif isinstance(value, np.ndarray):
            yield len(value) if value.ndim > 1 else 0


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", KINDS)
def test_every_view_of_very_many_of_a_kind_is_bounded(kind: str, tmp_path: Path) -> None:
    run = _opened(tmp_path, kind)
    assert len(run.table) >= MANY and not run.failed
    assert len(info.info_text(run).splitlines()) < MANY + 100
    answered = 0
    for name in VIEWS:
        for by in ("", *view_spec(name).by):
            try:
                frame = query(run, View(run.name, name=name, by=by))
            except ChopperError as error:
                assert len(str(error)) <= _LONGEST, (name, by)
                continue
            answered += 1
            assert max(map(len, (*frame.headline, *frame.notes)), default=0) <= _LONGEST, (name, by)
            for chart in frame.charts:
                assert max(_drawn(chart), default=0) <= _MOST_DRAWN, (name, by, type(chart))
    assert answered > 2 * len(VIEWS) // 3


def test_a_low_stretch_of_very_many_iterations_is_found_in_little_memory() -> None:
    random = np.random.default_rng(5)
    relative = 1 + 0.01 * random.normal(size=40_000)
    relative[12_345:15_001] *= 0.9
    with within(200 << 20):
        first, end, drop = low_interval(relative)
    assert (first, end) == (12_345, 15_001)
    assert drop == pytest.approx(0.1, abs=0.005)
