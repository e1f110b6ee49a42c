"""The house stays one that strangers find their way in, and can trust: what its text shows."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import chopper_core
import chopper_tui

ROOMS = [Path(package.__file__).parent for package in (chopper_core, chopper_tui)]


@pytest.fixture(scope="module")
def modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_bytes()) for room in ROOMS for path in room.rglob("*.py")}


def test_no_two_classes_have_one_name(modules: dict[Path, ast.Module]) -> None:
    named = defaultdict(list)
    for path, module in modules.items():
        for statement in module.body:
            if isinstance(statement, ast.ClassDef):
                # A private twin of a public class is as easily taken for it.
                named[statement.name.lstrip("_")].append(f"{path.name}:{statement.lineno}")
    assert {name: places for name, places in named.items() if len(places) > 1} == {}


def test_the_code_neither_evaluates_nor_connects(modules: dict[Path, ast.Module]) -> None:
    calls = {"eval", "exec", "compile", "__import__"}
    others = {"socket", "urllib", "http", "requests", "ftplib", "smtplib", "marshal", "shelve"}
    for path, module in modules.items():
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in calls, path
            if isinstance(node, ast.Import):
                assert not {name.name.partition(".")[0] for name in node.names} & others, path
            if isinstance(node, ast.ImportFrom) and node.module != "urllib.parse":
                assert (node.module or "").partition(".")[0] not in others, path


def test_pickle_is_for_pipes_between_processes_alone(modules: dict[Path, ast.Module]) -> None:
    using = [path.name for path in modules if "pickle.load" in path.read_text("utf-8")]
    assert using == ["workers.py"]
