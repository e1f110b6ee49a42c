"""CharLLM-PPT's files of nodes: processors as a view, and one line for many files alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.render import info
from chopper_core.util.errors import NothingToShow
from chopper_core.views.query import query
from tests.charllm import SAMPLE_NS, START_S, directory, experiment

CPUS = 6
BUSY = [10.0 * cpu for cpu in range(CPUS)]
"""In %, of each processor."""


def write_node(folder: Path, samples: int, period_s: float) -> None:
    """The seconds that each processor of node 0 idles, waits for I/O, and works or waits."""
    for cpu, busy in enumerate(BUSY):
        waits = 0.05 * (1 - busy / 100)
        idles = (1 - busy / 100) - waits
        for name, share in (("idle", idles), ("iowait", waits), ("usage", 0.3)):
            lines = (
                f"{START_S + at * period_s:.6f},{1_000 + at * period_s * share:.9f}\n"
                for at in range(samples)
            )
            path = folder / f"system_cpu_{name}_rank_0_id_{cpu}.csv"
            path.write_text("".join(lines))


def check(run: Run, address: str) -> None:
    frame = query(run, parse(f"{run.name}?{address}"))
    busy = dict(zip(map(int, frame.labels), frame.values["cpu_busy_pct"].known(), strict=True))
    assert [busy[cpu] for cpu in range(CPUS)] == pytest.approx(BUSY, abs=0.01)
    assert f"5.0 of {CPUS} logical processors" in frame.headline[0]


def test_processors_of_telemetry_alone(tmp_path: Path) -> None:
    folder = directory(tmp_path / "run", ranks=2, samples=40)
    write_node(folder, 40, 0.05)
    run = open_run(str(folder), jobs=1)
    check(run, "view=cpu")
    with pytest.raises(NothingToShow, match="steps need a trace"):
        query(run, parse(f"{run.name}?view=cpu&by=iteration"))
    # A known column that the telemetry lacks is empty, and says why.
    lacking = ("mean_hotspot_c", "limit_w", "r_gfx_hotspot")
    power = query(run, parse(f"{run.name}?view=power&columns={','.join(lacking)},mean_power_w"))
    for name in lacking:
        assert not power.values[name].present().any()
    assert all(each.missing_because for each in power.columns if each.name in lacking)
    assert power.values["mean_power_w"].present().all()
    (line,) = (each for each in info.info_text(run).splitlines() if "mixes the seconds" in each)
    assert f"and {CPUS - 1} more" in line


def test_processors_next_to_traces(tmp_path: Path) -> None:
    experiment(tmp_path / "run", late=True)
    write_node(tmp_path / "run", 13, SAMPLE_NS / 1e9)
    check(open_run(str(tmp_path / "run"), jobs=1), "view=cpu&by=cpu")
