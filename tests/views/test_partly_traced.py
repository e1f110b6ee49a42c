"""CharLLM-PPT's usual run: traces of the ranks with tp 0 and dp 0, telemetry of all of them.

What its telemetry and its step times are is known; energies are added up here sample by sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from chopper_core.extensions.runs.figures import with_settings
from chopper_core.extensions.runs.run_rows import RunRow
from chopper_core.extensions.runs.run_set import open_runs
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.charts import BarChart
from chopper_core.model.run import Run
from chopper_core.util.errors import UsageError
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from tests.charllm import (
    IB_STEPS,
    SAMPLE_NS,
    STEPS,
    directory,
    experiment,
    joules,
    watts,
    write_ib,
)

SETTINGS = "model:\n  global_batch_size: 128\n  encoder_seq_length: 4096\n"
TOKENS = 128 * 4096
GPUS = range(8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("sweep") / "charllm"
    experiment(found, settings=SETTINGS)
    write_ib(found, 0, len((found / "gpu_power_0.csv").read_text().splitlines()))
    return found


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return open_run(str(folder), jobs=1)


def frame(run: Run, rest: str) -> Frame:
    return query(run, parse(f"{run.name}?{rest}"))


def spans_ns(run: Run) -> list[tuple[int, int]]:
    """Begin and end of each step since the epoch: it takes in the idle time since the last one."""
    table = run.table
    ends = [
        int((table.start_ns + table.duration_ns)[table.iteration == number].max())
        for number in sorted({*table.iteration.tolist()} - {-1})
    ]
    return [*zip([int(table.start_ns.min()), *ends], ends, strict=False)]


def step_energy(run: Run, ranks: Sequence[int]) -> float:
    steps = spans_ns(run)
    return sum(joules(rank, *step) for rank in ranks for step in steps) / len(steps)


def test_the_job_s_settings_are_a_file_that_is_read(run: Run) -> None:
    assert run.settings["global_batch"] == 128
    assert [path for path, _ in run.skipped if path.endswith(".yaml")] == []


def test_energy_is_that_of_all_gpus(run: Run) -> None:
    assert sorted(run.traced) == [0, 4]
    power = frame(run, "view=power")
    whole = step_energy(run, GPUS)
    assert power.total["iteration_energy_j"] == pytest.approx(whole, rel=0.01)
    for place, gpu in enumerate(map(int, power.labels)):
        own = power.values["iteration_energy_j"].at(place)
        assert own == pytest.approx(step_energy(run, [gpu]), rel=0.01), gpu
    assert power.total["token_energy_mj"] == pytest.approx(1e3 * whole / TOKENS, rel=0.01)
    assert "on 8 GPUs" in power.headline[0]
    overview = frame(run, "view=overview")
    watts_of_all = power.total["mean_power_w"]
    assert (
        f"{watts_of_all:.0f} W" in overview.headline[0] and "6 other GPUs" in overview.headline[1]
    )
    by_step = frame(run, "view=power&by=iteration")
    each = [sum(joules(rank, *step) for rank in GPUS) for step in spans_ns(run)]
    assert by_step.values["step_energy_j"].known() == pytest.approx(each, rel=0.01)


@pytest.mark.parametrize(
    ("by", "ranks"),
    [
        ("pp", {"0": [0, 1, 2, 3], "1": [4, 5, 6, 7]}),
        ("dp", {"0": [0, 1, 4, 5], "1": [2, 3, 6, 7]}),
        ("node", {"node 0": [*GPUS]}),
    ],
)
def test_groups_of_gpus(run: Run, by: str, ranks: dict[str, list[int]]) -> None:
    found = frame(run, f"view=power&by={by}")
    assert list(found.labels) == list(ranks)
    for place, own in enumerate(ranks.values()):
        at = {name: values.at(place) for name, values in found.values.items()}
        assert at["group_gpus"] == len(own)
        assert at["iteration_energy_j"] == pytest.approx(step_energy(run, own), rel=0.01)
        assert at["peak_power_w"] == max(watts(rank, 4) for rank in own)
        # Rank r is at r % 8 + 50 to 60 °C.
        assert at["hottest_c"] == max(own) % 8 + 60
        assert at["hot_spread_c"] == pytest.approx(max(own) - min(own), abs=0.1)


def test_a_scope_of_the_layout_has_its_gpus_without_a_trace_too(run: Run) -> None:
    found = query(run, parse(f"{run.name}:pp=1?order=pp,gpu&view=power"))
    assert list(found.labels) == ["4", "5", "6", "7"]
    assert found.total["iteration_energy_j"] == pytest.approx(step_energy(run, range(4, 8)), 0.01)


def test_efficiency_in_a_table_of_runs(folder: Path, run: Run) -> None:
    (row,) = _rows(folder)
    whole, took = step_energy(run, GPUS), _step_s(run)
    assert row.figures["j_per_step"] == pytest.approx(whole, rel=0.01)
    assert row.figures["tokens_per_j"] == pytest.approx(TOKENS / whole, rel=0.01)
    assert row.figures["run_tokens_per_s"] == pytest.approx(TOKENS / took, rel=0.01)
    assert row.figures["tokens_per_s"] == pytest.approx(TOKENS / took / 8, rel=0.01)
    # Throughput has the same tokens, from the same settings.
    rate = frame(run, "view=throughput").total["tokens_per_s"]
    assert rate == pytest.approx(row.figures["tokens_per_s"], rel=1e-12)


def _step_s(run: Run) -> float:
    steps = spans_ns(run)
    return 1e-9 * (steps[-1][1] - steps[0][0]) / len(steps)


def _rows(*folders: Path) -> list[RunRow]:
    runs = open_runs("sweep", [str(each) for each in folders], jobs=1, use_cache=False)
    while runs.waiting(wait=True):
        pass
    return list(runs.reading(False).rows)


def test_an_end_after_the_last_sample_is_marked(run: Run, tmp_path: Path) -> None:
    """Up to a period it counts with the last sample; any further, it is unknown."""
    experiment(tmp_path / "late", late=True)
    late = frame(open_run(str(tmp_path / "late"), jobs=1), "view=power")
    marked = frame(run, "view=power")
    assert marked.values["iteration_energy_j"].is_extrapolated(0)
    assert "~" in marked.headline[0] and "~" not in late.headline[0]
    assert not any(late.values["iteration_energy_j"].is_extrapolated(gpu) for gpu in GPUS)
    assert late.total["iteration_energy_j"] == pytest.approx(
        marked.total["iteration_energy_j"], rel=1e-9
    )
    for path in (tmp_path / "late").glob("gpu_power_*.csv"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-5]))
    asked = "view=power&columns=iteration_energy_j"
    early = frame(open_run(str(tmp_path / "late"), jobs=1), asked)
    assert not early.values["iteration_energy_j"].present().any()
    assert early.total["iteration_energy_j"] is None


def test_kernels_of_a_stage(run: Run) -> None:
    found, table = frame(run, "view=kernels&by=pp"), run.table
    assert list(found.labels) == ["0", "1"]
    for stage, gpu in enumerate((0, 4)):
        own = (table.gpu == gpu) & (table.iteration >= 0)
        per_step = table.duration_ns[own].sum() / len(spans_ns(run))
        assert found.values["kernel_ns"].at(stage) == pytest.approx(per_step)
        (bars,) = found.charts
        assert isinstance(bars, BarChart)
        stacked = sum(float(each.numbers[stage]) for each in bars.series)
        assert stacked == pytest.approx(per_step / 1e6)
    with pytest.raises(UsageError, match="unknown shape 'pp'"):
        frame(run, "view=kernels&of=pp")


def test_traffic_of_a_step_and_of_a_token(run: Run, folder: Path) -> None:
    """Each counter rises by the same amount between any two samples."""
    columns = "nvlink_in_step_bytes,nvlink_token_bytes,pcie_out_step_bytes"
    found = frame(run, f"view=power&columns={columns}")
    per_second = {name: step * 1e9 / SAMPLE_NS for name, step in STEPS.items()}
    took, tokens = _step_s(run), TOKENS / len(GPUS)
    received = 1024 * per_second["nvlink_rx_throughput"] * took
    sent = 1024 * per_second["nvlink_tx_throughput"] * took
    for row in GPUS:
        at = {name: values.at(row) for name, values in found.values.items()}
        assert at["nvlink_in_step_bytes"] == pytest.approx(received, rel=0.01)
        assert at["nvlink_token_bytes"] == pytest.approx((received + sent) / tokens, rel=0.01)
        assert at["pcie_out_step_bytes"] == pytest.approx(
            per_second["pcie_tx_bytes"] * took, rel=0.01
        )
    (row_of_run,) = _rows(folder)
    assert row_of_run.figures["nvlink_in_step_bytes"] == pytest.approx(8 * received, rel=0.01)
    assert row_of_run.figures["nvlink_token_bytes"] == pytest.approx(
        (received + sent) / tokens, rel=0.01
    )
    stages = frame(run, f"view=power&by=pp&columns={columns}")
    assert stages.values["nvlink_in_step_bytes"].at(1) == pytest.approx(4 * received, rel=0.01)


def test_infiniband_is_counted_once_a_node(run: Run, folder: Path) -> None:
    """Each of the eight GPUs has its node's bytes, which are no sum over them."""
    took = _step_s(run) * 1e9 / SAMPLE_NS
    received, sent = (took * sum(steps[way] for steps in IB_STEPS.values()) for way in ("rx", "tx"))
    expected = {
        "ib_in_step_bytes": received,
        "ib_out_step_bytes": sent,
        "ib_token_bytes": (received + sent) / TOKENS,
    }
    columns = ",".join(expected)
    for address in ("view=power", "view=ranks", "view=power&by=node"):
        found = frame(run, f"{address}&columns={columns}")
        assert len(found) == (1 if "node" in address else 8)
        for name, number in expected.items():
            assert found.values[name].known() == pytest.approx(number, rel=0.01), address
            if "node" not in address:
                assert found.total[name] == pytest.approx(number, rel=0.01), address
    # A stage is only a part of the node.
    stages = frame(run, f"view=power&by=pp&columns={columns}")
    assert not stages.values["ib_in_step_bytes"].present().any()
    (row,) = _rows(folder)
    for name, number in expected.items():
        assert row.figures[name] == pytest.approx(number, rel=0.01)
    # A link that nothing counts is a known column.
    assert (
        not frame(run, "view=ranks&columns=xgmi_token_bytes")
        .values["xgmi_token_bytes"]
        .present()
        .any()
    )


def test_traffic_of_telemetry_alone(tmp_path: Path) -> None:
    """Two nodes of eight GPUs: what is counted in the window is that of its steps."""
    folder = directory(tmp_path / "run", ranks=16, samples=20, only=("gpu_power", *STEPS))
    for rank in (0, 8):
        write_ib(folder, rank, 20, 50_000_000)
    alone = open_run(str(folder), jobs=1)
    received = 19 * sum(steps["rx"] for steps in IB_STEPS.values())
    found = frame(alone, "view=power&columns=ib_in_bytes,xgmi_in_bytes")
    assert found.values["ib_in_bytes"].known().tolist() == [received] * 16
    assert not found.values["xgmi_in_bytes"].present().any()
    (row,) = _rows(folder)
    assert "ib_in_step_bytes" not in row.figures and "steps=1" in row.missing["ib_in_step_bytes"]
    figures = with_settings(row, {"steps": 2, "global_batch": 64, "sequence": 512}).figures
    assert figures["ib_in_step_bytes"] == 2 * received / 2
    nvlink = 1024 * 19 * (STEPS["nvlink_rx_throughput"] + STEPS["nvlink_tx_throughput"])
    assert figures["nvlink_token_bytes"] == pytest.approx(16 * nvlink / 2 / (64 * 512))


def test_the_tree_has_energy_heat_and_peaks_of_a_stage(run: Run) -> None:
    columns = "energy_j,most_power_w,most_edge_c,edge_c,gfx_mhz"
    found = query(run, parse(f"{run.name}?order=pp,gpu&columns={columns}"))
    for stage, rank in enumerate((0, 4)):
        at = {name: values.at(stage) for name, values in found.values.items()}
        # Of the ranks that have a trace, per step; kernels are shorter than a sample.
        assert at["energy_j"] == pytest.approx(step_energy(run, [rank]), rel=0.01)
        assert at["most_power_w"] == watts(rank, 4)
        assert at["most_edge_c"] == rank + 60
