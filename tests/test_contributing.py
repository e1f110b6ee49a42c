"""The examples of CONTRIBUTING work as they stand: each is registered by its one line, and used."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import replace

from chopper_core import findings
from chopper_core.columns import METRICS
from chopper_core.model import address
from chopper_core.model.view import View
from chopper_core.render.exports import ExportOptions
from chopper_core.sources import registry
from chopper_core.sources.registry import FORMATS, Family, read_source
from chopper_core.sources.signals import SignalName, Telemetry
from chopper_core.util.progress import silent
from chopper_core.views import VIEWS, Tab
from chopper_core.views.query import query
from chopper_tui import keymap
from tests.demo import demo_run
from tests.tui.explorer import explorer, measured_run

TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text("utf-8")
EXAMPLES = {
    section.partition("\n")[0]: match[1]
    for section in TEXT.split("\n## ")
    if (match := re.search(r"```python\n(.*?)```", section, re.DOTALL))
}


def module(monkeypatch: pytest.MonkeyPatch, name: str, section: str, like: str = "") -> ModuleType:
    """The example of a section as a module; with `like` below the lines of another."""
    made = ModuleType(name)
    if like:
        vars(made).update(vars(sys.modules[like]))
    exec(compile(EXAMPLES[section], f"<{section}>", "exec"), vars(made))
    monkeypatch.setitem(sys.modules, name, made)
    return made


def test_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        module(monkeypatch, "example_metric", "A metric", like="chopper_core.columns.time")
        run = demo_run()
        frame = query(run, address.parse("R:gpu=1?view=kernels&columns=mean_gap_ns,idle_ns"))
        rows = range(len(frame))
        gap, idle = (frame.values[name] for name in ("mean_gap_ns", "idle_ns"))
        sizes = query(run, address.parse("R:gpu=1?view=kernels&columns=activities"))
        count = sizes.values["activities"]
        assert len(frame) > 10
        assert [gap.at(row) for row in rows] == pytest.approx(
            [(idle.at(row) or 0) / (count.at(row) or 0) for row in rows]
        )
    finally:
        METRICS.pop("mean_gap_ns", None)


def test_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "chopper_core.views.copies", "A view")
    monkeypatch.setitem(VIEWS, "copies", Tab("4", "copies"))
    frame = query(demo_run(), address.parse("R?view=copies&by=phase"))
    exposed, each, copies = (
        frame.values[name] for name in ("exposed_copy_ns", "each_copy_ns", "copies")
    )
    assert frame.labels[0] == "data" and len(frame) > 2
    assert exposed.at(0) == pytest.approx((each.at(0) or 0) * (copies.at(0) or 0)) != 0
    assert each.at(len(frame) - 1) is None
    assert frame.total["exposed_copy_ns"] == pytest.approx(exposed.numbers.sum())
    total, of_all = frame.total["each_copy_ns"], (frame.total["copies"] or 0)
    assert total == pytest.approx(exposed.numbers.sum() / of_all)


def test_a_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module(monkeypatch, "chopper_core.sources.telemetry.wattlog", "A source")
    known = {**FORMATS, Family.TELEMETRY: (*FORMATS[Family.TELEMETRY], "telemetry.wattlog")}
    monkeypatch.setattr(registry, "FORMATS", known)
    path = tmp_path / "power.csv"
    rows = "".join(f"{time}.5,{gpu},{500 + gpu}\n" for time in range(3) for gpu in (0, 1))
    path.write_text(f"time,gpu,watts\n{rows}cut,0\n")
    found = read_source(path, Family.TELEMETRY)
    assert isinstance(found, Telemetry) and found.format == "wattlog CSV"
    assert [gpu.index for gpu in found.gpus] == [0, 1]
    for gpu in (0, 1):
        (samples,) = found.signals[gpu, SignalName.POWER_W]
        assert samples.value.tolist() == [500 + gpu] * 3
    assert "1 row" in " ".join(found.losses.notes)


def test_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    made = module(monkeypatch, "chopper_core.findings.idle", "A finding")
    monkeypatch.setattr(findings, "RULES", (*findings.RULES, made.idle))
    view = address.parse("R?view=findings")

    def found() -> list[str]:
        # Findings are kept with their run: another object has none yet.
        labels = query(replace(demo_run("fsdp1")), view).labels
        return [text for text in labels if text.startswith("GPUs are idle for")]

    monkeypatch.setattr(made, "IDLE", made.threshold("idle part | 0 | %"))
    assert len(found()) == 1
    monkeypatch.setattr(made, "IDLE", made.threshold("idle part | 99 | %"))
    assert found() == []


def test_an_export(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = module(monkeypatch, "chopper_core.render.exports.lines", "An export")
    run = measured_run()
    assert made.write(run, tmp_path / "lines.txt", ExportOptions(), silent) == []
    _, *lines = (tmp_path / "lines.txt").read_text().splitlines()
    rows = [line.split(" ", 3) for line in lines]
    table = run.table
    assert sum(int(duration) for _, _, duration, _ in rows) == table.duration_ns.sum()
    assert [name for *_, name in rows] == [table.names[code] for code in table.kernel]
    assert min(int(start) for _, start, _, _ in rows) == 0


async def test_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keymap, "_DECLARED", [])
    module(monkeypatch, "example_key", "A key", like="chopper_tui.actions.walk")
    (action,) = keymap.declared_actions()
    assert action.keys == ("ctrl+y",) and action.command == ":middle"
    async with explorer((80, 24), measured_run(), View("sample.json", ("1", "11"))) as at:
        at.explore.actions[action.id] = action
        at.explore.action_perform(action.id)
        await at.settle()
        assert at.explore.table.cursor == at.explore.table.rows // 2 > 0
