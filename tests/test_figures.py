"""docs/figures.md: every address in it answers, with the columns that stand beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from chopper_core.extensions.runs.figures import figures_of_run, with_settings
from chopper_core.extensions.runs.run_rows import Reading, RunRow
from chopper_core.extensions.runs.run_set import RunSet
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.settings import in_name
from chopper_core.model.table import empty_table
from chopper_core.views.query import query
from tests.demo import demo_run

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "figures.md"
MODULES = (
    "end_to_end",
    "gemm_time",
    "vec_time",
    "comm_violin",
    "comm_dur",
    "comm_straggler",
    "overlap_gpus",
    "overlap_confs",
    "overlap_correlation",
    "overlap_straggler_leader",
    "straggler_per_gpu",
    "lead_and_throughput",
    "launch_overhead",
    "overhead_breakdown",
    "rocm_arch_chart",
    "device_timeline",
    "device_cdf",
    "freq_pow",
    "total_power",
    "average_power_freq",
    "freq_temp_corr",
    "power_cap_dist",
    "cpu_active_cores",
    "cpu_phys_log",
)
"""The plot modules of UnaryLab/chopper."""


def rows() -> list[tuple[str, tuple[str, ...]]]:
    """Address and columns of every row of the page."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)]
        if len(cells) == 6 and "demo_data" in cells[3]:
            address = cells[3].strip().strip("`")
            found.append((address, tuple(re.findall(r"`(\w+)`", cells[4]))))
    return found


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    names = ("demo_data/fsdp2", "demo_data/fsdp1")
    opened = {name: demo_run(Path(name).name, named=str(ROOT / name)) for name in names}
    found = {name: replace(run, others=opened) for name, run in opened.items()}
    return {**found, "demo_data": demo_runs(opened)}


def demo_runs(opened: dict[str, Run]) -> RunSet:
    """Both demo runs as a set."""
    rows = []
    for path, run in sorted(opened.items()):
        name = Path(path).name
        settings = in_name(name)
        whole = with_settings(figures_of_run(run), settings)
        rows.append(RunRow(name, path, settings, figures=whole.figures, missing=whole.missing))
    reading = Reading(rows)
    return RunSet("demo_data", empty_table(), (), (), others=opened, reading=lambda wait: reading)


def test_every_module_of_the_original_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [module for module in MODULES if module not in text] == []
    assert len(rows()) > 30


@pytest.mark.parametrize(("address", "columns"), dict.fromkeys(rows()))
def test_every_address_answers(
    runs: dict[str, Run], address: str, columns: tuple[str, ...]
) -> None:
    view = parse(address)
    frame = query(runs[view.run], view)
    assert len(frame) > 0
    assert columns
    for name in columns:
        assert name in frame.values, (name, list(frame.values))
        assert frame.values[name].present().any(), name
