"""A sweep of the network's bandwidth in a simulator, next to what was measured: docs/chakra.md.

The simulator is that of `tests/oracles/astra_sim.py`, on rings; the truth is a sum by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core import api
from chopper_core.extensions.chakra.synthetic import generate, pattern_settings
from chopper_core.ingest.open import open_run
from chopper_tui.cli import main
from tests.oracles.astra_sim import ring_of, simulated_log

LAYERS, FORWARD_NS, BYTES, MEASURED = 4, 400_000, 64 * 10**6, 100


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep") / "workload"
    settings = ["ranks=4", "bytes=64M", f"gb_s={MEASURED}", "layers=4", "compute_us=400"]
    generate("data_parallel", pattern_settings("data_parallel", settings), folder)
    for gb_s in (50, 100, 200):
        log = folder / f"gb_s{gb_s}" / "log" / "log.log"
        log.parent.mkdir(parents=True)
        log.write_text(simulated_log(folder, ring_of(gb_s)))
    return folder


def transfer_ns(gb_s: int) -> int:
    """An all-reduce of 4 ranks around a ring moves 2 * 3 / 4 of its bytes."""
    return BYTES * 6 // 4 // gb_s


def step_ns(gb_s: int) -> int:
    """Forward, then the backward pass of each layer, behind which its gradients are reduced."""
    computed = LAYERS * FORWARD_NS
    reduced = 0
    for _ in range(LAYERS):
        computed += 2 * FORWARD_NS
        reduced = max(reduced, computed) + transfer_ns(gb_s)
    return reduced + FORWARD_NS


def test_the_folder_is_what_was_measured(sweep: Path) -> None:
    run = open_run(str(sweep), jobs=1)
    assert run.marks == ("generated",) and len(run.gpus) == 4
    assert int((run.table.start_ns + run.table.duration_ns).max()) == step_ns(MEASURED)


@pytest.mark.parametrize("gb_s", [50, 100, 200])
def test_simulated_and_replayed_are_what_they_should_be(gb_s: int, sweep: Path) -> None:
    simulated = open_run(str(sweep / f"gb_s{gb_s}" / "log" / "log.log"), jobs=1)
    assert int((simulated.table.start_ns + simulated.table.duration_ns).max()) == step_ns(gb_s)
    changed = api.diff(str(sweep), simulated.name)
    own = changed.values["elapsed_ns_delta"]
    times = {label: own.at(row) for row, label in enumerate(changed.labels)}
    assert changed.total["elapsed_ns_delta"] == step_ns(gb_s) - step_ns(MEASURED)
    # Of operations only the collective and what waits for it differ.
    assert times["forward"] == times["optimizer"] == 0
    replayed = api.OpenRun(open_run(str(sweep), jobs=1)).what_if(f"comm x{MEASURED / gb_s:g}")
    assert replayed.values["step_ns"].at(1) == step_ns(gb_s)


def test_the_runs_of_a_sweep_are_a_table(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [str(sweep / f"gb_s{gb_s}") for gb_s in (50, 100, 200)]
    assert main(["runs", *logs, "--name", "gb_s{gb_s}/log", "--format", "csv", "--no-cache"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = {line.split(",")[0]: line.split(",") for line in lines[1:]}
    at = lines[0].split(",").index("step_time_ns")
    for gb_s in (50, 100, 200):
        assert float(found[f"gb_s{gb_s}/log"][at]) == step_ns(gb_s)
