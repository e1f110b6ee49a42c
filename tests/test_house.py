"""The house stays one that strangers find their way in: names that mean one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import chopper_core
import chopper_tui

ROOMS = [Path(package.__file__).parent for package in (chopper_core, chopper_tui)]
MODULES = {path: ast.parse(path.read_bytes()) for room in ROOMS for path in room.rglob("*.py")}


def test_no_two_classes_have_one_name() -> None:
    named = defaultdict(list)
    for path, module in MODULES.items():
        for statement in module.body:
            if isinstance(statement, ast.ClassDef):
                # A private twin of a public class is as easily taken for it.
                named[statement.name.lstrip("_")].append(f"{path.name}:{statement.lineno}")
    assert {name: places for name, places in named.items() if len(places) > 1} == {}
