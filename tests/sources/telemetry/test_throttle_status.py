"""The throttle status of tools that count no limiter's time."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.sources.signals import SignalName
from chopper_core.sources.telemetry import amd_smi
from chopper_core.sources.telemetry.series import throttled_pct

HEAD = "timestamp,gpu,gfx_activity,socket_power,throttle_status"


@pytest.mark.parametrize(
    ("status", "share"),
    [("THROTTLED", 100), ("UNTHROTTLED", 0), ("0", 0), ("0x40", 100), (8, 100), ("N/A", "N/A")],
)
def test_a_status_is_a_word_or_a_mask(status: object, share: object) -> None:
    assert throttled_pct(status) == share


def test_a_status_is_read_where_nothing_finer_is(tmp_path: Path) -> None:
    path = tmp_path / "metric.csv"
    rows = [
        f"{1_700_000_000 + n},0,90,600,{'THROTTLED' if n % 2 else 'UNTHROTTLED'}" for n in range(4)
    ]
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    (samples,) = amd_smi.read(path).signals[0, SignalName.THROTTLE_PCT]
    assert samples.value.tolist() == [0, 100, 0, 100]
    finer = HEAD + ",accumulation_counter,ppt_violation_activity"
    path.write_text(
        "\n".join([finer, *(f"{row},{100 + n},{n}" for n, row in enumerate(rows))]) + "\n"
    )
    first = amd_smi.read(path).signals[0, SignalName.THROTTLE_PCT][0]
    assert first.value.tolist() == [0, 1, 2, 3]
