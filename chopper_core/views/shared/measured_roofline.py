"""The roofline from hardware counters: measured intensity, its limit and the share reached."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.metrics import METRICS, Metric, Scope, Values, column, numbered
from chopper_core.model.run import Run

INTENSITY: Final = column(
    "intensity",
    "FLOP/B",
    "FLOP/B",
    "Arithmetic intensity: the FLOPs of the matrix units and, where counted, of the vector units "
    "(mfma_tflops + valu_tflops) over the bytes per second that the L2 caches read and wrote "
    "over the fabric.",
    source="counters",
    missing_because="the row lacks counters of the fabric or of the units that its kernels use",
)
ROOF: Final = column(
    "roof_tflops",
    "TFLOP/s",
    "roof TF/s",
    "The roofline's limit: the smaller of the peak for the types that the matrix units "
    "multiplied and intensity times the memory's bandwidth (hardware.toml).",
    source="counters and hardware.toml",
    missing_because="the intensity is unknown, or the GPU is not in hardware.toml",
)
OF_ROOF: Final = column(
    "roof_pct",
    "%",
    "% roof",
    "mfma_tflops + valu_tflops in % of roof_tflops.",
    source="counters and hardware.toml",
    missing_because=ROOF.missing_because,
)


def measured_roofline(run: Run, scope: Scope) -> list[tuple[Metric, Values]]:
    """Intensity, the roofline's limit and the share of it reached; missing without counters."""
    matrix, vector, share, reads, writes = (
        METRICS[name].compute(scope)
        for name in (
            *("mfma_tflops", "valu_tflops", "mfma_peak_pct"),
            *("fabric_read_gbps", "fabric_write_gbps"),
        )
    )
    rate = np.where(matrix.present(), matrix.numbers, 0.0)
    rate = rate + np.where(vector.present(), vector.numbers, 0.0)
    traffic = reads.numbers + writes.numbers
    # Without counters of the vector units nothing is known of a kernel without matrix FLOPs.
    known = (rate > 0) | vector.present()
    known &= matrix.present() & reads.present() & writes.present() & (traffic > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        intensity = np.where(known, 1e3 * rate / traffic, np.nan)
        if run.hardware is None:
            roof = np.full(len(intensity), np.nan)
        else:
            # The units' peak for the types that they multiplied in the row.
            peak = 100.0 * matrix.numbers / np.where(share.numbers > 0, share.numbers, np.nan)
            by_memory = intensity * run.hardware.memory_gbps / 1e3
            roof = np.where(matrix.numbers > 0, np.minimum(peak, by_memory), by_memory)
        reached = 100.0 * rate / np.where(roof > 0, roof, np.nan)
    return [
        (INTENSITY, numbered(intensity)),
        (ROOF, numbered(roof)),
        (OF_ROOF, numbered(reached)),
    ]
