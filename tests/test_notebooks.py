"""The notebooks run from the first cell to the last, and find what the demo run has planted."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from tests.conftest import ROOT
from tests.demo import as_kept, demo_run

FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.fixture(autouse=True)
def _demo(monkeypatch: pytest.MonkeyPatch) -> None:
    demo_run(), demo_run("fsdp1")
    as_kept(monkeypatch)


def cells(path: Path) -> Iterator[str]:
    document = json.loads(path.read_text("utf-8"))
    assert document["nbformat"] == 4
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "committed without outputs"
            yield "".join(cell["source"])


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does; the value of its last line, shown as a notebook shows it."""
    module = ast.parse(source)
    last = module.body.pop() if isinstance(module.body[-1], ast.Expr) else None
    exec(compile(module, "cell", "exec"), names)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    for name in ("_repr_svg_", "_repr_html_"):
        if show := getattr(value, name, None):
            shown = show()
            assert shown and "Traceback" not in shown
            if name == "_repr_svg_":
                fromstring(shown)
            break
    return value


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_runs(path: Path) -> None:
    names: dict[str, Any] = {}
    values = [run_cell(source, names) for source in cells(path)]
    assert all(value is not None for value in values)
    assert sum(names["shares"].values()) == pytest.approx(1)
    assert names["straggler"] == "5" and names["last"].row(0)[0] == 5
    assert names["what_if"].values["saving_ns"].cell(1) == pytest.approx(36e6, rel=0.1)
    assert names["changes"].total["elapsed_ns_delta"] < 0
    assert names["power"].labels[0] == "5"


class App:
    """What of marimo's App a notebook needs to run from top to bottom."""

    def __init__(self) -> None:
        self.cells: list[Callable[..., Any]] = []

    def cell(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.cells.append(function)
        return function

    def play(self) -> dict[str, Any]:
        names: dict[str, Any] = {}
        for function in self.cells:
            given = {name: names[name] for name in inspect.signature(function).parameters}
            values = function(**given)
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
            assert isinstance(body, ast.FunctionDef)
            returned = body.body[-1]
            assert isinstance(returned, ast.Return) and isinstance(returned.value, ast.Tuple)
            defined = [ast.unparse(each) for each in returned.value.elts]
            names |= dict(zip(defined, values, strict=True))
        return names


def test_the_marimo_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = ModuleType("marimo")
    stand_in.App = App  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "marimo", stand_in)
    spec = importlib.util.spec_from_file_location("tour_marimo", FOLDER / "tour_marimo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names = module.app.play()
    assert names["straggler"] == "5" and names["power"]["name"][0] == "5"
    assert names["what_if"].values["saving_ns"].cell(1) == pytest.approx(36e6, rel=0.1)
