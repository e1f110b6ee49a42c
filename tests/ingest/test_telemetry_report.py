"""Telemetry without a run is read and described, not refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chopper_core.ingest.attach import telemetry_report
from chopper_tui.cli import main

LOG = (
    "timestamp,gpu,power_usage,gfx_clk\n"
    "1754585900,0,700 W,1500\n1754585900,1,N/A,1700\n1754585902,0,650,junk\n,\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "log.csv").write_text(LOG)
    return tmp_path


def test_what_a_log_holds(folder: Path) -> None:
    report = telemetry_report([folder], "json")
    assert report is not None
    (found,) = json.loads(report)["telemetry"]
    assert found["signals"] == {
        "power_w": {"samples": 2, "min": 650.0, "max": 700.0},
        "gfx_mhz": {"samples": 2, "min": 1500.0, "max": 1700.0},
    }
    assert found["gpus"] == ["gpu 0", "gpu 1"]
    assert found["last_ns"] - found["first_ns"] == 2_000_000_000
    assert any("gfx_mhz that can't be parsed" in loss for loss in found["losses"])


def test_info_prints_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "no traces and no counters" in shown
    assert "clock epoch, resolution 1 s, 2.000 s from 2025-08-07 16:58:20 UTC" in shown
    assert "LOST: 1 value of gfx_mhz that can't be parsed" in shown


def test_it_opens_as_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", f"{folder}?base=total", "--format", "text"]) == 0
    shown = capsys.readouterr().out
    assert "no trace: rows are intervals between samples" in shown
    # Two samples of power make an energy, a single one of a clock makes no window.
    assert " 1350\n" in shown
    assert " 0.000" not in shown


def test_nothing_at_all_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert telemetry_report([tmp_path], "text") is None
    assert main(["info", str(tmp_path)]) == 1
    assert "holds no traces" in capsys.readouterr().err
