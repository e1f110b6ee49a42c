"""Which GPU a device is: told by the files, or said by hand where they tell wrongly."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from chopper_core.align.identity import (
    gpus_of_agents,
    gpus_of_telemetry,
    with_places,
)
from chopper_core.ingest.open import open_run
from chopper_core.model.hardware import Agent
from chopper_core.model.inputs import Gpu
from chopper_core.model.overrides import overrides_of, parse_gpu
from chopper_core.render.info import describe, info_text
from chopper_core.sources.signals import GpuName
from chopper_core.util.errors import UsageError
from chopper_tui.cli import main
from tests.ingest.simulated import Simulated
from tests.wording import Wording

COARSE = "telemetry/amd_smi_monitor.csv"
FINE = "telemetry/gpu_metrics.csv.gz"
COUNTED = ("SQ_WAVES", "counter_match")


@pytest.fixture(scope="module")
def swapped(small: Simulated, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose coarse telemetry calls GPU 0 17, and GPU 1 0."""
    folder = tmp_path_factory.mktemp("swapped") / "run"
    shutil.copytree(small.folder, folder)
    (folder / FINE).unlink()
    path = folder / COARSE
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    for row in rows:
        row["gpu"] = {"0": "17", "1": "0"}.get(row["gpu"], row["gpu"])
    with path.open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


@pytest.fixture(scope="module")
def coarse(small: Simulated, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coarse") / "run"
    shutil.copytree(small.folder, folder)
    (folder / FINE).unlink()
    return folder


@pytest.mark.sweep
def test_what_is_said_of_telemetry_gives_each_gpu_its_own(swapped: Path, coarse: Path) -> None:
    overrides = overrides_of(gpus=[parse_gpu("amd_smi:17=0"), parse_gpu("amd_smi:0=1")])
    true, told = open_run(str(coarse), jobs=1), open_run(str(swapped), jobs=1)
    said = open_run(str(swapped), jobs=1, overrides=overrides)
    assert list(told.measured["power_w"].curves) == [0]
    power = {run: run.measured["power_w"].curves for run in (true, told, said)}
    for gpu in (0, 1):
        np.testing.assert_array_equal(power[said][gpu].integral, power[true][gpu].integral)
    np.testing.assert_array_equal(power[told][0].integral, power[true][1].integral)


@pytest.mark.sweep
def test_what_is_said_of_counters_gives_them_to_another_gpu(small: Simulated) -> None:
    overrides = overrides_of(gpus=[parse_gpu("rocprofv3:2=1"), parse_gpu("rocprofv3:node3=none")])
    said = open_run(str(small.folder), jobs=1, overrides=overrides)
    assert {source.gpu for source in said.counters} == {1}
    assert np.isnan(said.table.measured["SQ_WAVES"][said.table.gpu == 0]).all()
    assert np.isfinite(said.table.measured["SQ_WAVES"][said.table.gpu == 1]).sum() > 300


@pytest.mark.sweep
def test_a_gpu_that_is_said_to_be_one_device_is_no_other(coarse: Path) -> None:
    overrides = overrides_of(gpus=[parse_gpu("amd_smi:0=1")])
    run = open_run(str(coarse), jobs=1, overrides=overrides)
    found = {i.device: i.gpu for i in run.identities if "amd_smi" in i.source}
    assert found == {"gpu 0": 1, "gpu 1": None}


@pytest.mark.sweep
def test_the_table_of_identities_says_whose_a_device_is_and_what_told_it(
    coarse: Path, wording: Wording
) -> None:
    overrides = overrides_of(gpus=[parse_gpu("amd_smi:1=0"), parse_gpu("amd_smi:0=none")])
    run = open_run(str(coarse), jobs=1, overrides=overrides)
    shown = info_text(run)
    table = shown[shown.index("devices matched to GPUs") :].splitlines()
    assert table[1].split() == ["GPU", "rank", "trace", "rocprofv3", "CSV", "amd_smi_monitor.csv"]
    assert table[2].split() == ["0", "0", "device", "2,", "0000:0c:00.0", "node", "2,",
                                "0000:0c:00.0", "gpu", "1", "*"]  # fmt: skip
    wording.among(shown, "amd_smi_monitor.csv: by hand (*)")
    assert "not matched: gpu 0 *" in shown
    wording.among(shown, "--gpu amd_smi:0=none")
    rows = [row for row in describe(run)["identities"] if "amd_smi" in row["source"]]
    assert [(row["device"], row["gpu"]) for row in rows] == [("gpu 0", None), ("gpu 1", 0)]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("rocm_smi:0=1", "matches no counters or telemetry of this run; it has .*amd_smi_monitor"),
        ("amd_smi:9=1", "matches no device of amd_smi_monitor.csv; it has gpu 0, gpu 1"),
        ("amd_smi:0=7", "the run has no GPU 7; it has 0, 1"),
    ],
)
def test_what_names_nothing_is_an_error(small: Simulated, said: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_run(str(small.folder), jobs=1, overrides=overrides_of(gpus=[parse_gpu(said)]))


def test_a_node_that_two_hosts_have_tells_nothing() -> None:
    gpus = [Gpu(0, 0, 2, ""), Gpu(1, 1, 3, ""), Gpu(2, 2, 2, ""), Gpu(3, 3, 3, "")]
    agents = [Agent(2, type_index=0), Agent(3, type_index=1)]
    assert [found.gpu for found in gpus_of_agents(agents, gpus, {})] == [0, 1]
    assert {found.by for found in gpus_of_agents(agents, gpus, {})} == {"number"}
    said = gpus_of_agents(agents, gpus, {"2": 2, "node3": 3})
    assert [found.gpu for found in said] == [2, 3]


def test_the_pci_bus_tells_a_gpu_before_its_number() -> None:
    """The table of a profiler's devices knows both the node and the place on the bus."""
    agents = [Agent(2, pci="0000:0c:00.0"), Agent(3, pci="0001:22:00.0"), Agent(9, pci="")]
    gpus = with_places([Gpu(0, 0, 2, ""), Gpu(1, 1, 3, "")], agents)
    assert [gpu.pci for gpu in gpus] == ["0000:0c:00.0", "0001:22:00.0"]
    # As nvidia-smi and amd-smi write it, in another order, with a device of another job.
    names = [GpuName(0, pci="00000001:22:00.0"), GpuName(1, pci="0000:0C:00.0"),
             GpuName(2, pci="0000:38:00.0")]  # fmt: skip
    found = gpus_of_telemetry(names, gpus, {})
    assert [(each.gpu, each.by) for each in found] == [(1, "PCI bus"), (0, "PCI bus"),
                                                       (None, "PCI bus")]  # fmt: skip
    partitions = [Gpu(0, 0, 2, "", pci="0000:0c:00.0"), Gpu(1, 1, 3, "", pci="0000:0c:00.0")]
    shared = gpus_of_telemetry(names[:2], partitions, {})
    assert {each.by for each in shared} == {"number"}


def test_every_gpu_of_a_described_node_has_its_place(small: Simulated) -> None:
    assert [gpu.pci for gpu in small.run.gpus] == ["0000:0c:00.0", "0000:22:00.0"]


@pytest.mark.sweep
def test_an_address_brings_what_was_said_back(
    swapped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ["--columns", "power_w", "--format", "json"]
    plain = shown(capsys, "show", str(swapped), *columns)
    said = ["--gpu", "amd_smi:17=0", "--gpu", "amd_smi:0=1", "--clock", "amd_smi=+0.5s"]
    first = shown(capsys, "show", str(swapped), *said, *columns)
    assert [row["power_w"] for row in plain["rows"]] != [row["power_w"] for row in first["rows"]]
    again = shown(capsys, "show", first["address"], "--format", "json")
    assert again == first
    below = shown(capsys, "show", first["rows"][1]["address"], "--format", "json")
    assert below["total"]["power_w"] == first["rows"][1]["power_w"]
    assert "gpu=amd_smi:0=1,amd_smi:17=0" in below["address"]


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(arguments) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("devices", "ranks", "expected"),
    [
        ((0, 1, 2, 3), (4, 5, 6, 7), [4, 5, 6, 7]),
        ((2, 1, 0, 3), (4, 5, 6, 7), [6, 5, 4, 7]),
        # Nodes of HSA begin with the processors; a process that sees one GPU calls it 0.
        ((2, 3, 4, 5), (4, 5, 6, 7), [None] * 4),
        ((0, 0, 0, 0), (4, 5, 6, 7), [None] * 4),
        ((0,), (4,), [None] * 4),
        # Numbers that the run has win.
        ((0, 1, 2, 3), (2, 3, 4, 5), [None, None, 2, 3]),
    ],
)
def test_telemetry_of_a_second_node_is_matched_by_device(
    devices: tuple[int, ...], ranks: tuple[int, ...], expected: list[int | None]
) -> None:
    gpus = [Gpu(rank, rank, device, "") for rank, device in zip(ranks, devices, strict=True)]
    found = gpus_of_telemetry([GpuName(index=number) for number in range(4)], gpus, {})
    assert [each.gpu for each in found] == expected
