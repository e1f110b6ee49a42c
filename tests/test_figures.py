"""docs/figures.md: every address in it answers, with the columns next to it: those of the demo on
the demo, those of CharLLM-PPT (`RUN`) on experiments in its format. On these all others answer too,
or say what the files lack.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from chopper_core.extensions.runs.figures import figures_of_run, with_settings
from chopper_core.extensions.runs.run_rows import Reading, RunRow
from chopper_core.extensions.runs.run_set import RunSet
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.settings import in_name
from chopper_core.model.table import empty_table
from chopper_core.util.errors import ChopperError
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from tests.charllm import experiment
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
        address = cells[3].strip().strip("`") if len(cells) == 6 else ""
        if address.startswith(("demo_data", "RUN", "SWEEP")):
            found.append((address, tuple(re.findall(r"`([\w-]+)`", cells[4]))))
    return found


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    names = ("demo_data/fsdp2", "demo_data/fsdp1")
    opened = {name: demo_run(Path(name).name, named=str(ROOT / name)) for name in names}
    found = {name: replace(run, others=opened) for name, run in opened.items()}
    return {**found, "demo_data": set_of(opened)}


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Two experiments of CharLLM-PPT under the names of the demo's runs, and as `RUN`."""
    folder, opened = tmp_path_factory.mktemp("charllm"), {}
    settings = "model:\n  global_batch_size: 64\n  encoder_seq_length: 512\n"
    for name, given in (("fsdp1", {"forward_us": 500}), ("fsdp2", {})):
        experiment(folder / name, settings=settings, **given)
        run = open_run(str(folder / name), jobs=1)
        opened[f"demo_data/{name}"] = replace(run, name=f"demo_data/{name}")
    found = {name: replace(run, others=opened) for name, run in opened.items()}
    alone = replace(found["demo_data/fsdp2"], name="RUN")
    return {**found, "RUN": alone, "demo_data": set_of(opened)}


def set_of(opened: dict[str, Run]) -> RunSet:
    """Some runs as a set."""
    rows = []
    for path, run in sorted(opened.items()):
        name = Path(path).name
        settings = {**in_name(name), **run.settings}
        whole = with_settings(figures_of_run(run), settings)
        rows.append(RunRow(name, path, settings, figures=whole.figures, missing=whole.missing))
    reading = Reading(rows)
    return RunSet("demo_data", empty_table(), (), (), others=opened, reading=lambda wait: reading)


def test_every_module_of_the_original_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [module for module in MODULES if module not in text] == []
    assert len(rows()) > 30


def check(frame: Frame, columns: tuple[str, ...]) -> None:
    assert len(frame) > 0
    assert columns
    for name in columns:
        assert name in frame.values, (name, list(frame.values))
        assert frame.values[name].present().any(), name


ADDRESSES = [each for each in dict.fromkeys(rows()) if not each[0].startswith("SWEEP")]
"""Those of a sweep are in tests/views/test_documented_sweeps.py."""


@pytest.mark.parametrize(
    ("address", "columns"), [each for each in ADDRESSES if not each[0].startswith("RUN")]
)
def test_every_address_answers(
    runs: dict[str, Run], address: str, columns: tuple[str, ...]
) -> None:
    view = parse(address)
    check(query(runs[view.run], view), columns)


@pytest.mark.parametrize(("address", "columns"), ADDRESSES)
def test_every_address_answers_on_charllm(
    experiments: dict[str, Run], address: str, columns: tuple[str, ...]
) -> None:
    """Its runs have no operations, counters, shapes or CPU samples: what needs them says so."""
    view = parse(address)
    if view.run == "RUN":
        check(query(experiments["RUN"], view), columns)
        return
    try:
        frame = query(experiments[view.run], view)
    except ChopperError as error:
        assert str(error) and "Traceback" not in str(error)
        return
    assert len(frame) > 0 or frame.notes
    missing = [name for name in columns if name not in frame.values]
    if view.columns:
        # A known column without data is empty, with its reason.
        assert missing == []
