from __future__ import annotations

from pathlib import Path

import pytest

from chopper_tui.app import ChopperApp
from chopper_tui.screen import Explorer


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No waiting, no colours of the developer's terminal, no files outside of the test's folder."""
    monkeypatch.setattr(Explorer, "DETAIL_DELAY", 0.0)
    monkeypatch.setattr(ChopperApp, "SETTLING", 0.001)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)
