from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

from chopper_tui.app import ChopperApp
from chopper_tui.screen import Explorer

_RULES: Final[dict[object, list[RuleSet]]] = {}
_parse_rules: Final = Stylesheet._parse_rules


def _parsed_once(sheet: Stylesheet, css: str, *place: Any, **more: Any) -> list[RuleSet]:
    key = (css, place, *more.items(), *sheet._variables.items())
    if key not in _RULES:
        _RULES[key] = _parse_rules(sheet, css, *place, **more)
    return _RULES[key]


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No waiting, no style sheet parsed twice, no colours of the developer's terminal, no files
    outside of the test's folder."""
    monkeypatch.setattr(Stylesheet, "_parse_rules", _parsed_once)
    monkeypatch.setattr(Explorer, "DETAIL_DELAY", 0.0)
    monkeypatch.setattr(ChopperApp, "SETTLING", 0.001)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)
