"""Telemetry without a run is read and described, not refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.render.info import describe
from chopper_tui.cli import main
from tests.wording import Wording

LOG = (
    "timestamp,gpu,power_usage,gfx_clk\n"
    "1754585900,0,700 W,1500\n1754585900,1,N/A,1700\n1754585902,0,650,junk\n,\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "log.csv").write_text(LOG)
    return tmp_path


def test_what_a_log_holds(folder: Path, wording: Wording) -> None:
    report = describe(open_run(str(folder), jobs=1))
    power, clock = report["samples"]["power_w"], report["samples"]["gfx_mhz"]
    assert (power["samples"], power["min"], power["max"]) == (2, 650.0, 700.0)
    assert (clock["samples"], clock["min"], clock["max"]) == (2, 1500.0, 1700.0)
    assert power["last_ns"] - power["first_ns"] == 2_000_000_000
    assert [each["device"] for each in report["identities"]] == ["gpu 0", "gpu 1"]
    (found,) = report["telemetry"]
    wording.among(found["notes"], "gfx_mhz")


def test_info_prints_it(folder: Path, capsys: pytest.CaptureFixture[str], wording: Wording) -> None:
    assert main(["info", str(folder)]) == 0
    shown = capsys.readouterr().out
    wording.among(shown, "no traces", "no counters")
    wording.among(shown, "power_w: 2 samples, 650 to 700", "2.000 s", "2025-08-07 16:58:20")
    wording.among(shown, "1 value of gfx_mhz")


def test_it_opens_as_a_run(
    folder: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    assert main(["show", f"{folder}?base=total", "--format", "text"]) == 0
    shown = capsys.readouterr().out
    wording.among(shown, "no trace")
    # Two samples of power make an energy, of one sampling period: it and its total are marked.
    # A single sample of a clock makes no window.
    assert [line.split()[2] for line in shown.splitlines()[2:4]] == ["~1350", "~1350"]
    assert " 0.000" not in shown


def test_nothing_at_all_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert main(["info", str(tmp_path)]) == 1
    assert "holds no traces" in capsys.readouterr().err
