"""The house stays one that strangers find their way in, and can trust: what its text shows."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Final, get_type_hints

import pytest

import chopper_core
import chopper_tui
from chopper_core.util.escape import Escaped
from chopper_tui.commands.output import write
from tests.cli.test_errors import PAGE, cell, check
from tests.conftest import ROOT
from tests.realdata.conftest import FOLDER

ROOMS = [Path(package.__file__).parent for package in (chopper_core, chopper_tui)]


@pytest.fixture(scope="module")
def modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_bytes()) for room in ROOMS for path in room.rglob("*.py")}


@pytest.fixture(scope="module")
def nodes(modules: dict[Path, ast.Module]) -> dict[Path, list[ast.AST]]:
    """All that is in each module, walked once."""
    return {path: [*ast.walk(module)] for path, module in modules.items()}


def test_no_two_classes_have_one_name(modules: dict[Path, ast.Module]) -> None:
    named = defaultdict(list)
    for path, module in modules.items():
        for statement in module.body:
            if isinstance(statement, ast.ClassDef):
                # A private twin of a public class is as easily taken for it.
                named[statement.name.lstrip("_")].append(f"{path.name}:{statement.lineno}")
    assert {name: places for name, places in named.items() if len(places) > 1} == {}


def test_conditions_are_written_as_conditions(nodes: dict[Path, list[ast.AST]]) -> None:
    """`"s" if many else ""`, not a text times a truth value, nor a slice that begins at one."""

    def is_truth(node: ast.expr | None) -> bool:
        name = node.func if isinstance(node, ast.Call) else node
        text = ast.unparse(name).rpartition(".")[2] if name is not None else ""
        return (
            isinstance(node, ast.Compare)
            or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
            or text == "bool"
            or text.startswith(("is_", "has_"))
        )

    def is_listed(node: ast.expr) -> bool:
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        return is_text or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple)

    found = []
    for path, own in nodes.items():
        for node in own:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                sides = (node.left, node.right), (node.right, node.left)
                bad = any(is_listed(one) and is_truth(other) for one, other in sides)
            elif isinstance(node, ast.Slice):
                bad = is_truth(node.lower) or is_truth(node.upper)
            else:
                continue
            found += [f"{path.name}:{node.lineno}: {ast.unparse(node)}"] if bad else []
    assert found == []


ROLES = {
    "answer",
    "main",
    "missing_from",
    "preview",
    "read",
    "recognise",
    "run",
    "set_frame",
    "write",
}
"""What a registry calls in each of its modules."""


def test_no_two_public_functions_have_one_name(modules: dict[Path, ast.Module]) -> None:
    named = defaultdict(set)
    for path, module in modules.items():
        for statement in module.body:
            if isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_"):
                named[statement.name].add(path)
    for name, places in named.items():
        files = " and ".join(sorted(str(path) for path in places))
        assert len(places) == 1 or name in ROLES, f"{name} is public in {files}: rename one"


SCRAPER = ("feeds.py", "scrape_feed")


def test_the_code_neither_evaluates_nor_connects(nodes: dict[Path, list[ast.AST]]) -> None:
    calls = {"eval", "exec", "compile", "__import__"}
    others = {"socket", "urllib", "http", "requests", "ftplib", "smtplib", "marshal", "shelve"}
    # `--scrape URL` alone connects: the function that it calls imports what it needs.
    scrapes: dict[str, set[int]] = defaultdict(set)
    for path, own in nodes.items():
        for node in own:
            if isinstance(node, ast.FunctionDef) and (path.name, node.name) == SCRAPER:
                scrapes[path.name] = {each.lineno for each in node.body}
    assert [*scrapes] == [SCRAPER[0]]
    for path, own in nodes.items():
        for node in own:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in calls, path
            if isinstance(node, ast.Import):
                assert not {name.name.partition(".")[0] for name in node.names} & others, path
            if isinstance(node, ast.ImportFrom) and node.module != "urllib.parse":
                is_network = (node.module or "").partition(".")[0] in others
                assert not is_network or node.lineno in scrapes[path.name], path
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    told = next(line for line in page.splitlines() if line.startswith("| No network"))
    assert "`--engine dask`" in told and "`--watch --scrape`" in told


def test_text_leaves_through_one_escaper(nodes: dict[Path, list[ast.AST]]) -> None:
    """Writers take `Escaped`, which mypy checks; what makes and what writes it stands here."""
    makers, writers = set(), set()
    for path, own in nodes.items():
        for node in own:
            if isinstance(node, ast.Call):
                call = ast.unparse(node.func)
                makers |= {path.name} if call == "Escaped" else set()
                is_write = re.fullmatch(r"print|sys\.(__)?std(out|err)(__)?\.write\w*", call)
                writers |= {path.name} if is_write else set()
    assert makers == {"escape.py", "exchange.py", "diff.py"}
    assert writers == {"output.py", "terminal.py", "options.py"}
    assert get_type_hints(write, {"Escaped": Escaped})["text"] is Escaped


def test_the_smoke_test_installs_the_lowest_supported_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["fast"]]
    bounds = {each.partition(",")[0].replace(">=", "==") for each in needed}
    pins = (ROOT / "tests" / "lowest.txt").read_text("utf-8").splitlines()
    assert {pin for pin in pins if not pin.startswith("#")} == bounds


_BANNED = re.compile(
    r"\b(?:is|are|was|were) (?:told(?! apart)|said|sought)\b|\bgoes on\b"
    r"|\bwent by\b|\banew\b"
    r"|\b(?:is|are) no (?:valid|regular|number|JSON|TOML|store|trace|node[s ])|\bat stake\b"
    r"|\bnothing tells\b|\bmade wait\b|\bas it was written\b|\bthe begin\b"
)
"""Phrases that read as translated (docs/glossary.md has the terms to use)."""


def test_no_sentence_reads_as_translated(modules: dict[Path, ast.Module]) -> None:
    root = ROOMS[0].parent
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    texts = {path: path.read_text("utf-8") for path in [*modules, *pages]}
    # Its commands have names of their own.
    texts.pop(root / "docs" / "internals" / "errors.md", None)
    found = {
        f"{path.name}: {line.strip()}"
        for path, text in texts.items()
        for line in text.splitlines()
        if _BANNED.search(line)
    }
    assert found == set()


def test_pages_name_tests_that_exist() -> None:
    """Security, reliability, errors and releases promise what a test shows."""
    root = ROOMS[0].parent
    tests = {path.name for path in (root / "tests").rglob("*.py")}
    for page in ("security", "reading", "internals/reliability", "internals/errors"):
        text = (root / "docs" / f"{page}.md").read_text("utf-8")
        named = re.findall(r"`([\w/.]*\.py)`", text)
        lost = {name for name in named if name.rpartition("/")[2] not in tests}
        lost |= {name for name in named if "/" in name and not (root / name).is_file()}
        lost |= {f"python -m {name}" for name in re.findall(r"python -m (tests[\w.]*)", text)
                 if not (root / name.replace(".", "/")).with_suffix(".py").is_file()
                 and not (root / name.replace(".", "/") / "__main__.py").is_file()}  # fmt: skip
        assert not lost and named, page


def test_the_pages_of_the_house_name_files_that_exist() -> None:
    """Each path of two pages, from a package or from the folder named before."""
    for page in (ROOT / "docs" / "internals" / "where.md", ROOT / "docs" / "architecture.md"):
        before = ROOT
        named = re.findall(r"`([\w/]+(?:\.py|\.toml|\.tcss|/))`", page.read_text("utf-8"))
        assert len(named) > 20
        for name in named:
            tried = [room / name for room in (ROOT, *ROOMS, before)]
            found = next((path for path in tried if path.exists()), None)
            assert found or len([*ROOMS[0].rglob(name)]) == 1, f"{page.name}: {name}"
            before = before if found is None else found if found.is_dir() else found.parent


_ENDING: Final = re.compile(r"\.(?:gz|zst|bz2|lz4)\b")


def test_one_module_knows_the_endings_of_compressed_files(
    nodes: dict[Path, list[ast.AST]],
) -> None:
    """Each room that lists them forgets one: `.gz` alone stood in 25 files."""
    found = {
        path.name
        for path, own in nodes.items()
        for node in own
        if isinstance(node, ast.Constant) and _ENDING.search(str(node.value))
    }
    # The recorder runs in the user's processes, which have nothing else of Chopper.
    assert found == {"compression.py", "recorder.py"}


def test_no_pickle_is_read(modules: dict[Path, ast.Module]) -> None:
    assert not [path for path in modules if "pickle.load" in path.read_text("utf-8")]


CODES: Final = {
    "DataError": 1, "StoreWriteError": 1, "OnlyRangesError": 1, "OutOfMemory": 1, "UnreadError": 1,
    "UsageError": 2, "ArgumentTypeError": 2, "NoSuchNode": 3, "NothingToShow": 0,
}  # fmt: skip


def sentences(modules: list[list[ast.AST]]) -> dict[str, int]:
    """Each sentence of an error in the code, with … for what varies, and its exit code."""
    constants = {
        node.target.id: node.value
        for module in modules
        for node in ast.iter_child_nodes(module[0])
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value
    }

    def text(node: ast.AST) -> str:
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.JoinedStr):
            return "".join(map(text, node.values))
        if isinstance(node, ast.BinOp):
            return text(node.left) + text(node.right)
        if isinstance(node, ast.FormattedValue):
            return text(node.value) if isinstance(node.value, ast.Name) else "…"
        known = constants.get(node.id) if isinstance(node, ast.Name) else None
        return text(known) if isinstance(known, ast.Constant | ast.JoinedStr) else "…"

    found: dict[str, int] = {}
    for module in modules:
        for call in module:
            if isinstance(call, ast.Call) and call.args:
                name = getattr(call.func, "attr", getattr(call.func, "id", ""))
                says = re.sub("…(?:…)+", "…", text(call.args[0])) if name in CODES else ""
                if len(re.findall("[a-z]{2,}", says)) > 1:
                    found[says] = CODES[name]
    return found


@pytest.mark.golden
def test_every_sentence_is_listed_with_its_test(nodes: dict[Path, list[ast.AST]]) -> None:
    """A new one fails here until its row names the test that provokes it, in place of `?`."""
    page = PAGE.read_text(encoding="utf-8")
    rows = page.split("<!-- sentences -->\n")[1].split("\n<!-- /sentences -->")[0].splitlines()[2:]
    known = {row.rpartition(" | ")[0]: row.rpartition(" | ")[2] for row in rows}
    listed = [
        f"| {cell(says)} | {code}"
        for says, code in sentences([nodes[path] for path in sorted(nodes)]).items()
    ]
    rows = [f"{row} | {known.get(row, '? |')}" for row in listed]
    fresh = [row for row in listed if row not in known]
    if "CHOPPER_UPDATE_GOLDENS" not in os.environ:
        assert not fresh, f"`make docs` lists it in errors.md; name its test there: {fresh}"
    check("sentences", rows, "| says | exit code | tested by |\n| :-- | --: | :-- |")
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    given = {row.rpartition(" | ")[2].strip(" `|") for row in rows}
    assert given <= tests


def test_no_golden_knows_where_it_was_written() -> None:
    """Another checkout, with the real files beside it, reads the same goldens."""
    goldens = [path for path in ROOT.glob("tests/**/golden/**/*") if path.is_file()]
    places = {str(ROOT), str(FOLDER)}
    assert goldens
    assert [
        f"{path.relative_to(ROOT)}: {place}"
        for path in goldens
        for place in places
        if place.encode() in path.read_bytes()
    ] == []
