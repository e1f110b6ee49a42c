"""The sampler of a node with stand-ins for the libraries: what they do is found in its files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from record.recorded import STAND_INS, environment, has_lines, sampled

from chopper_core.ingest.open import open_run
from chopper_core.record import manifest
from chopper_core.record.manifest import NODES, RecordedNode, name_of_host
from chopper_core.sources.registry import Family, read_source
from chopper_core.sources.signals import ClockDomain, SignalName, Telemetry
from chopper_core.sources.telemetry import sampler as own_format
from tests.wording import Wording

MS = 1_000_000
PERIOD_MS, REFRESH_MS = 100, 10
TELEMETRY = f"telemetry-{name_of_host()}.csv"


def node_of(run: Path) -> RecordedNode:
    return msgspec.json.decode(
        (run / NODES / f"{name_of_host()}.json").read_bytes(), type=RecordedNode
    )


def gpu_notes(node: RecordedNode) -> list[str]:
    """The notes of a node, whether or not psutil is installed."""
    return [note for note in node.notes if not note.startswith("no CPU samples")]


def telemetry_of(run: Path, library: str, tmp_path: Path, **settings: object) -> Telemetry:
    variables = environment(
        library, tmp_path, period_ms=PERIOD_MS, refresh_ms=REFRESH_MS, **settings
    )
    assert sampled(run, variables, has_lines(run / TELEMETRY, 60), "--period-ms", "5") == 0
    return own_format.read(run / TELEMETRY)


def values(telemetry: Telemetry, gpu: int, signal: SignalName) -> tuple[np.ndarray, np.ndarray]:
    (samples, *_) = telemetry.signals[gpu, signal]
    return samples.time_ns, samples.value


def since_boot(stamps_ns: np.ndarray, node: RecordedNode) -> np.ndarray:
    (anchor, *_) = node.anchors
    return stamps_ns - anchor.epoch_ns + anchor.boottime_ns


def test_amd_samples_have_the_time_at_which_the_driver_took_them(tmp_path: Path) -> None:
    run = tmp_path / "run"
    telemetry = telemetry_of(run, "amdsmi", tmp_path)
    node = node_of(run)
    assert telemetry.clock is ClockDomain.EPOCH
    # HIP's first GPU is amdsmi's last, and has the lowest address on the bus.
    assert [(gpu.index, gpu.kfd_node, gpu.pci) for gpu in telemetry.gpus] == [
        (0, 3, "0000:1c:00.0"),
        (1, 2, "0000:0c:00.0"),
    ]
    for gpu in range(2):
        times, watts = values(telemetry, gpu, SignalName.POWER_W)
        at_ns = since_boot(times, node)
        # The driver's stamp is a multiple of its refresh; anchors are good to microseconds.
        off_ns = (at_ns + REFRESH_MS * MS // 2) % (REFRESH_MS * MS) - REFRESH_MS * MS // 2
        assert abs(off_ns).max() < MS
        busy = (at_ns - off_ns) % (PERIOD_MS * MS) >= PERIOD_MS * MS // 2
        assert (watts == np.where(busy, 700, 150)).all()
        assert len(set(times.tolist())) == len(times)
        assert np.diff(at_ns - off_ns).min() >= REFRESH_MS * MS  # no sample twice
        _, mhz = values(telemetry, gpu, SignalName.GFX_MHZ)
        assert (mhz == np.where(busy, 2100, 130) + 2.5).all()  # of six XCDs with 0 to 5 MHz more


def test_amd_readings_that_are_missing_stay_missing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    telemetry = telemetry_of(run, "amdsmi", tmp_path)
    signals = {signal for _, signal in telemetry.signals}
    assert SignalName.MEM_C not in signals  # the maximum of 16 bits
    assert SignalName.EDGE_C not in signals  # N/A
    assert SignalName.XGMI_READ_BYTES not in signals  # lists of N/A
    assert len(telemetry.signals[0, SignalName.GFX_MHZ]) == 1 + 6  # two XCDs are N/A
    # GPU 0 of amdsmi is HIP's 1, whose VRAM isn't supported.
    assert (0, SignalName.VRAM_BYTES) not in telemetry.signals
    assert set(values(telemetry, 1, SignalName.VRAM_BYTES)[1].tolist()) == {float(1 << 30)}
    assert set(values(telemetry, 0, SignalName.POWER_CAP_W)[1].tolist()) == {750.0}
    shares = {each.part: each.value for each in telemetry.signals[0, SignalName.THROTTLE_PCT]}
    assert np.allclose(shares["ppt"], 50, atol=10)
    assert (shares["prochot"] == 0).all()
    assert gpu_notes(node_of(run)) == []


def test_a_gpu_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    telemetry = telemetry_of(run, "amdsmi", tmp_path, gpus=3, broken=[1])
    assert [gpu.pci for gpu in telemetry.gpus] == ["0000:2c:00.0", "0000:0c:00.0"]
    node = node_of(run)
    assert len(node.gpus) == 3
    (note,) = gpu_notes(node)
    assert note.startswith("metrics of GPU 1: AmdSmiLibraryException: Error code: 30 | ")


def test_nvml(tmp_path: Path) -> None:
    run = tmp_path / "run"
    telemetry = telemetry_of(run, "pynvml", tmp_path)
    node = node_of(run)
    assert (node.library, node.driver) == ("nvidia-ml-py", "NVIDIA 570.86.10")
    assert node.gpus[1].pci == "00000000:1c:00.0"
    assert node.gpus[1].uuid == "GPU-00000001"
    times, watts = values(telemetry, 0, SignalName.POWER_W)
    at_ns = since_boot(times, node)

    # NVML doesn't say when: the value is that of a refresh between this reading and the next.
    half = PERIOD_MS // 2 // REFRESH_MS
    refresh = (at_ns // (REFRESH_MS * MS)).tolist()
    for watt, first, last in zip(watts.tolist(), refresh, refresh[1:], strict=False):
        assert watt in {700 if at // half % 2 else 150 for at in range(first, last + 1)}
    _, limited = values(telemetry, 0, SignalName.THROTTLE_PCT)
    assert set(limited.tolist()) == {0.0, 100.0}
    signals = {signal for _, signal in telemetry.signals}
    assert SignalName.GFX_UTIL_PCT not in signals
    assert SignalName.MEM_C not in signals
    assert set(values(telemetry, 0, SignalName.POWER_CAP_W)[1].tolist()) == {700.0}
    # The stand-in counts 1 mJ per ms.
    _, rate = values(telemetry, 0, SignalName.ENERGY_RATE_W)
    assert abs(np.average(rate) - 1) < 0.5


@pytest.mark.sweep
def test_equal_values_are_one_sample(tmp_path: Path) -> None:
    run = tmp_path / "run"
    variables = environment("pynvml", tmp_path, gpus=1, period_ms=10_000_000, refresh_ms=1)
    assert sampled(run, variables, has_lines(run / TELEMETRY, 5), "--period-ms", "5") == 0
    times, _ = values(own_format.read(run / TELEMETRY), 0, SignalName.POWER_W)
    assert np.diff(times).min() >= 195 * MS


@pytest.mark.few(1)
@pytest.mark.parametrize("library", ["amdsmi", "pynvml"])
def test_without_rights_the_reason_is_recorded(tmp_path: Path, library: str) -> None:
    run = tmp_path / "run"
    variables = environment(library, tmp_path, denied=True)
    node = run / NODES / f"{name_of_host()}.json"
    assert sampled(run, variables, node.exists) == 0
    notes = node_of(run).notes
    says = {"amdsmi": "groups render and video", "pynvml": "Insufficient Permissions"}[library]
    assert any(says in note for note in notes), notes
    assert not (run / TELEMETRY).exists()


@pytest.mark.sweep
def test_a_second_sampler_of_a_node_ends_at_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    variables = environment("amdsmi", tmp_path)
    command = [sys.executable, "-m", "chopper_core.record.sampler", str(run)]

    def second_ended() -> bool:
        if not (run / NODES).exists():
            return False
        return subprocess.run(command, env=variables, timeout=20, check=False).returncode == 0

    assert sampled(run, variables, second_ended) == 0


def test_a_sampler_goes_on_where_another_one_ended(tmp_path: Path) -> None:
    """One that starts late, or of a second launch of the job, keeps what is known of the node."""
    run = tmp_path / "run"
    variables = environment("amdsmi", tmp_path)
    assert sampled(run, variables, has_lines(run / TELEMETRY, 8)) == 0
    first = node_of(run)
    assert sampled(run, variables, has_lines(run / TELEMETRY, 16)) == 0
    both = node_of(run)
    assert both.anchors[: len(first.anchors)] == first.anchors
    assert len(both.anchors) > len(first.anchors) and both.samples > first.samples
    assert both.files == first.files
    # Those whose job is over change nothing.
    gone = subprocess.Popen(["true"])
    gone.wait()
    size = (run / TELEMETRY).stat().st_size
    assert sampled(run, variables, lambda: False, "--parent", str(gone.pid)) == 0
    assert (node_of(run), (run / TELEMETRY).stat().st_size) == (both, size)


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    code = (
        "import subprocess, sys, time, pathlib\n"
        "command = [sys.executable, '-m', 'chopper_core.record.sampler']\n"
        f"child = subprocess.Popen([*command, {str(run)!r}])\n"
        f"while not list(pathlib.Path({str(run)!r}).glob('nodes/*')): time.sleep(0.02)\n"
        "print(child.pid, flush=True)\n"
        "import os; os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment("amdsmi", tmp_path), timeout=30,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    pid = int(done.stdout)
    until = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":
            break
        time.sleep(0.02)
    else:
        assert not Path(f"/proc/{pid}").exists(), os.getpid()
    assert len(node_of(run).anchors) == 2


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("tool", "watts", "clock"),
    [("amd-smi", 500.0, ClockDomain.EPOCH), ("nvidia-smi", 612.5, ClockDomain.LOCAL)],
)
def test_without_a_library_a_tool_writes_the_file(
    tmp_path: Path, tool: str, watts: float, clock: ClockDomain, wording: Wording
) -> None:
    run, folder = tmp_path / "run", tmp_path / "bin"
    folder.mkdir()
    text = (STAND_INS / tool).read_text().replace("/usr/bin/env python3", sys.executable)
    (folder / tool).write_text(text)
    (folder / tool).chmod(0o755)
    assert sampled(run, environment("", tmp_path), has_lines(run / TELEMETRY, 3)) == 0
    node = node_of(run)
    wording(node.library, tool)
    assert node.files[0] == TELEMETRY
    rows = (run / TELEMETRY).read_text().splitlines()[1:]
    assert 0 < node.samples <= len(rows)
    manifest.start_manifest(run, ["train"])
    about = open_run(str(run)).recordings[0].facts[f"node {node.host}"]
    assert f"GPUs as in {TELEMETRY}, {node.samples} samples through {tool}" in about
    telemetry: Telemetry = read_source(run / TELEMETRY, Family.TELEMETRY)
    assert telemetry.clock is clock
    assert values(telemetry, 0, SignalName.POWER_W)[1][0] == watts
