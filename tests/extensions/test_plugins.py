"""Plugins: an installed package adds one of each; a broken one costs a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.demo import small_files
from tests.wording import Wording

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "tests" / "extensions" / "plugin"
SCRIPT = """
import contextlib, io, json, sys
from chopper_tui.cli import main

for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as left:
            code = left.code
    modules = [name for name in sys.modules if name.startswith(("importlib.metadata", "chopper_w"))]
    print(json.dumps([code, out.getvalue(), err.getvalue(), modules]))
"""
BROKEN = """[chopper.sources]
bad = chopper_broken:nothing
worse = chopper_broken.source

[chopper.views]
bad = chopper_broken.nowhere
raises = chopper_broken.view

[chopper.metrics]
bad_ns = chopper_broken.source

[chopper.findings]
bad = chopper_broken.view

[chopper.exports]
bad = chopper_broken.view
"""


def commands(folder: Path, *lines: list[str], plugins: Path) -> list[tuple[int, str, str, Any]]:
    """The exit code, output, errors and imports of commands in one process with plugins."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(lines)],
        cwd=ROOT,
        env={"PATH": "", "HOME": str(folder), "PYTHONPATH": str(plugins)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_a_package_adds_one_of_each(tmp_path: Path) -> None:
    run = str(small_files())
    lines = [f"{time}.0,{gpu},{500 + gpu}" for time in range(1, 90) for gpu in (0, 1)]
    (tmp_path / "run.watts").write_text("\n".join(["time,gpu,watts", *lines]))
    before, view, by, metric, power, findings, export, unknown = commands(
        tmp_path,
        ["show", f"{run}/rank0.json.gz:gpu=0?view=kernels"],
        ["show", f"{run}?view=gaps", "--format", "json"],
        ["show", f"{run}?view=gaps&by=gpu"],
        ["show", f"{run}:gpu=1?columns=mean_gap_ns,idle_ns,activities", "--format", "json"],
        ["show", f"{tmp_path / 'run.watts'}?view=power", "--format", "json"],
        ["show", f"{run}?view=findings&columns=+advice"],
        ["export", run, "--to", "names", "-o", str(tmp_path / "names.txt")],
        ["show", f"{run}?view=nosuch"],
        plugins=PLUGIN,
    )
    # Names that Chopper has itself don't wait for the list of installed packages.
    assert before[0] == 0 and before[3] == []
    assert view[0] == by[0] == 0, view[2]
    columns = [each["name"] for each in json.loads(view[1])["columns"]]
    assert columns[:2] == ["idle_ns", "mean_gap_ns"]
    rows = json.loads(metric[1])["rows"]
    rows = [row for row in rows if row["activities"]][:1]
    assert rows and all(r["mean_gap_ns"] == r["idle_ns"] / r["activities"] for r in rows)
    assert power[0] == 0, power[2]
    assert "500" in power[1] and "501" in power[1]
    assert "wattlog: GPUs are idle for" in findings[1]
    assert "wattlog: keep the GPUs of this run busy." in findings[1]
    assert export[0] == 0 and (tmp_path / "names.txt").read_text().count("\n") > 10
    assert unknown[0] == 2 and "gaps" in unknown[2]


def test_the_page_shows_the_example() -> None:
    page = (ROOT / "docs" / "plugins.md").read_text("utf-8")
    for name in ("gaps.py", "operators.py"):
        assert (PLUGIN / "chopper_wattlog" / name).read_text("utf-8") in page


def test_a_package_adds_the_model_of_an_operator(tmp_path: Path) -> None:
    """2·m·k·n FLOPs of (3, 5, 64) x (64, 256), in bfloat16; one that fails tells no work."""
    script = """
import sys
from chopper_core.model.operator_inputs import Inputs
from chopper_core.util import plugins
from chopper_core.work.operators import has_model, operator_work
print("importlib.metadata" in sys.modules, has_model("aten::unheard_of"), has_model("no namespace"))
for shapes in ("[[3, 5, 64], [256, 64], []]", "[[3, 5, 64], [256, 63]]", "[7]"):
    types = '["c10::BFloat16", "c10::BFloat16", ""]'
    work = operator_work("wattlog::gated_linear", Inputs.parsed(shapes, types))
    print(work and (work.call.label, work.flops, work.bytes))
types = '["c10::BFloat16", "float", ""]'
gate = operator_work("wattlog::gate", Inputs.parsed("[[3, 5], [3, 5], []]", types))
print(gate and (gate.call.label, gate.bytes, gate.is_moved))
print(has_model("wattlog::other"), len(plugins.problems()))
"""
    for site, gated in ((PLUGIN, True), (tmp_path, False)):
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        first, known, other, odd, gate, last = done.stdout.splitlines()
        assert first.endswith("False False") and other == odd == "None" and last == "False 0"
        if gated:
            size = 2 * (3 * 5 * 64 + 256 * 64 + 3 * 5 * 256)
            assert known.endswith(f", {2.0 * 15 * 64 * 256}, {float(size)})")
            assert "15x256x64" in known
            # Reads (3, 5) in bfloat16 and in float32, and writes it in bfloat16.
            assert gate.endswith(f", {float(15 * (2 + 4 + 2))}, True)")
        else:
            assert known == gate == "None"


@pytest.mark.sweep
def test_a_broken_package_costs_a_sentence(tmp_path: Path, wording: Wording) -> None:
    package = tmp_path / "site" / "chopper_broken"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "source.py").write_text(
        "FAMILY, NAME, FILES, EXAMPLE, SUFFIXES = 'trace', 'bad', '', '', ()\n"
        "def recognise(head): raise ValueError('no idea')\n"
        "def read(path, progress=None): return None\n"
    )
    (package / "view.py").write_text(
        "from chopper_core.views.spec import ViewSpec\n"
        "SPEC = ViewSpec(name='raises', title='Raises', question='Why?')\n"
        "def answer(run, view): return 1 / 0\n"
    )
    info = tmp_path / "site" / "chopper_broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chopper-broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(BROKEN)
    run, other = str(small_files()), tmp_path / "notes.txt"
    other.write_text("notes")
    source, missing, view, metric, export, findings = commands(
        tmp_path,
        ["show", f"{run},{other}", "--no-cache"],
        ["show", f"{run}?view=bad"],
        ["show", f"{run}?view=raises"],
        ["show", f"{run}?columns=bad_ns"],
        ["export", run, "--to", "bad", "-o", str(tmp_path / "out")],
        ["show", f"{run}?view=findings"],
        plugins=tmp_path / "site",
    )
    for found in (source, findings):
        assert found[0] == 0 and "gpu" in found[1].casefold(), found[2]
    wording.among(source[2], "plugin worse of chopper-broken", "ValueError: no idea")
    wording.among(source[2], "plugin bad of chopper-broken")
    for found, text in (
        (missing, "ModuleNotFoundError"),
        (view, "the plugin raises of chopper-broken failed: ZeroDivisionError"),
        (metric, "registers no metric bad_ns"),
        (export, "can't be used: it has no DESCRIPTION"),
    ):
        assert found[0] == 1 and text in found[2], found
        assert "Traceback" not in found[2] and "internal error" not in found[2]
