"""The sampler of docs/telemetry.md, run against a stand-in for amdsmi."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from telemetry_texts import parts, read, values

from chopper_core.sources.signals import ClockDomain, GpuName, SignalName

DOCUMENT = Path(__file__).resolve().parents[3] / "docs/telemetry.md"


def stand_in(readings: int) -> ModuleType:
    """A module with what the sampler calls, interrupted after some readings."""
    amdsmi: Any = ModuleType("amdsmi")
    taken: list[int] = []

    def metrics(gpu: int) -> dict[str, Any]:
        if len(taken) == readings:
            raise KeyboardInterrupt
        taken.append(gpu)
        sample = taken.count(gpu)
        return {
            "current_socket_power": 700 + gpu,
            "temperature_mem": "N/A",
            "energy_accumulator": 65536 * sample,
            "accumulation_counter": 100 * sample,
            "ppt_residency_acc": 10 * sample,
            "current_gfxclks": [2100, 2000, "N/A"],
            "xgmi_read_data_acc": [sample] * 8,
        }

    amdsmi.amdsmi_init = amdsmi.amdsmi_shut_down = lambda: None
    amdsmi.amdsmi_get_processor_handles = lambda: [0, 1]
    amdsmi.amdsmi_get_gpu_device_bdf = lambda gpu: f"0000:0{gpu}:00.0"
    amdsmi.amdsmi_get_gpu_metrics_info = metrics
    return amdsmi


def test_what_the_documented_sampler_writes_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[0]
    monkeypatch.setitem(sys.modules, "amdsmi", stand_in(readings=6))
    exec(code, {})
    telemetry = read(tmp_path, capsys.readouterr().out)
    assert telemetry.clock is ClockDomain.EPOCH
    assert telemetry.gpus[1] == GpuName(index=1, pci="0000:01:00.0")
    assert values(telemetry, SignalName.POWER_W, 1) == [701] * 3
    assert parts(telemetry, SignalName.GFX_MHZ) == ["", "xcd0", "xcd1"]
    assert values(telemetry, SignalName.ENERGY_J) == [0, 1, 2]
    assert values(telemetry, SignalName.THROTTLE_PCT) == [10, 10]
    assert values(telemetry, SignalName.XGMI_READ_BYTES) == [0, 8192, 16384]
    assert any("time_ns minus monotonic_ns" in note for note in telemetry.notes)
    assert telemetry.losses.notes == []
