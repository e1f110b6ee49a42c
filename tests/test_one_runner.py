"""One runner: the command line, Python and the server give the same answer to 300 questions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from support import sample_run

from chopper_core.answers import opening, runner
from chopper_core.answers.tools import Toolbox
from chopper_core.api import OpenRun
from chopper_core.model.run import Run
from chopper_core.util.errors import ChopperError
from chopper_core.views import VIEWS, view_spec
from chopper_tui.cli import main

RUN = sample_run().name
QUESTIONS = 300
PATHS = ("", "", ":gpu=1", ":gpu=1/iteration=11", ":gpu=9", ":gpu=2/iteration=11/phase=forward")
ORDERS = ("", "", "operation", "phase,layer", "kernel", "nonsense")
COLUMNS = ("elapsed_ns", "idle_ns,kernels", "busy_pct", "gfx_mhz", "no_such_column")
FILTERS = ("attn", "!attn", "time>10us", "gpu:0-1", "time>", "(")
SORTS = ("-elapsed_ns", "idle_ns", "name", "no_such_column")
MORE = {
    "columns": COLUMNS,
    "filter": FILTERS,
    "sort": SORTS,
    "base": ("gpu%3D0", "gpu%3D8"),
    "stat": ("median", "p95"),
    "cut": ("1",),
}


def questions() -> list[str]:
    """Addresses of views, splits, orders, columns, filters, sorts and baselines; some are wrong."""
    random = Random(7)
    found: dict[str, None] = {}
    while len(found) < QUESTIONS:
        options: dict[str, str] = {}
        if random.random() < 0.7:
            options["view"] = random.choice([name for name in VIEWS if name != "live"])
            splits = view_spec(options["view"]).by
            if splits and random.random() < 0.6:
                options["by"] = random.choice(splits)
        elif order := random.choice(ORDERS):
            options["order"] = order
        for key, values in MORE.items():
            if random.random() < 0.15:
                options[key] = random.choice(values)
        path = "" if "order" in options else random.choice(PATHS)
        query = "&".join(f"{key}={value}" for key, value in options.items())
        found[f"{RUN}{path}{f'?{query}' if query else ''}"] = None
    return list(found)


def by_command(address: str, capsys: pytest.CaptureFixture[str]) -> Any:
    code = main(["show", address, "--format", "json", "--brief", "--limit", "8"])
    out, err = capsys.readouterr()
    return json.loads(out) if code == 0 else err.removeprefix("chopper: ").rstrip("\n")


def by_python(run: OpenRun, address: str) -> Any:
    try:
        return json.loads(run.frame(address).to_json(limit=8, brief=True))
    except ChopperError as error:
        return str(error)


def by_server(toolbox: Toolbox, address: str) -> Any:
    try:
        document = json.loads(toolbox.call("show", {"address": address, "limit": 8}))
    except ChopperError as error:
        return str(error)
    del document["data"]
    return document


def as_unknown(document: Any) -> Any:
    """A frame without rows as the server says it: why there are none."""
    if not isinstance(document, dict) or document.get("rows"):
        return document
    return {"address": document["address"], "unknown": "; ".join(document["notes"])}


@pytest.mark.few(1)
@pytest.mark.parametrize("part", range(3))
def test_300_questions_have_one_answer(
    part: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = sample_run()

    def opened(name: str, *_: object, **__: object) -> Run:
        assert name == RUN
        return run

    monkeypatch.setattr(opening, "opened_run", opened)
    monkeypatch.setattr(runner, "opened_run", opened)
    in_python, toolbox = OpenRun(run), Toolbox()
    differing: list[tuple[str, Sequence[Any]]] = []
    answered = 0
    asked = questions()[part::3]
    for address in asked:
        answer = by_command(address, capsys)
        answered += isinstance(answer, dict)
        server = by_server(toolbox, address)
        has_reason = isinstance(server, dict) and "rows" not in server
        others = [by_python(in_python, address), answer]
        if any((as_unknown(each) if has_reason else each) != server for each in others):
            differing.append((address, [server, *others]))
    assert not differing, (len(differing), differing[:3])
    assert len(asked) > answered > len(asked) / 2
