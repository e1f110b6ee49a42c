"""Checks of telemetry: readings that contradict the GPU's other readings are left out, and said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.doubts import Doubt, DoubtKind
from chopper_core.sources.signals import SignalName, SignalSamples, Telemetry
from chopper_core.util.arrays import Float64, Mask

_LOADED_PCT: Final = 20.0
"""A GPU that is used more isn't off."""
_NO_POWER_W: Final = 1.0
_WORKING_W: Final = 250.0
"""No GPU idles at more power."""
_FEWEST: Final = 10
"""Samples that tell whether two GPUs repeat one reading."""
_WORDS: Final = {
    SignalName.POWER_W: "power",
    SignalName.ENERGY_RATE_W: "energy counter",
    SignalName.GFX_UTIL_PCT: "use",
}
_FIGURES: Final = {
    SignalName.POWER_W: ("power_w", "energy_j"),
    SignalName.ENERGY_RATE_W: ("energy_rate_w",),
    SignalName.GFX_UTIL_PCT: ("gfx_util_pct",),
}
"""The columns that a signal gives."""


def believed(telemetry: Telemetry) -> Telemetry:
    """The telemetry without readings that can't be, and with the doubts about them."""
    signals = dict(telemetry.signals)
    doubts: list[Doubt] = []
    for found, doubt in _checked(telemetry):
        signals |= found
        doubts.append(doubt)
    return replace(telemetry, signals=signals, doubts=tuple(doubts)) if doubts else telemetry


_Signals = dict[tuple[int, SignalName], Sequence[SignalSamples]]


def _checked(telemetry: Telemetry) -> Iterator[tuple[_Signals, Doubt]]:
    """The signals without what each check finds, and the doubt about it."""
    if telemetry.is_of_node:
        return
    for find, signal, what in (
        (partial(_without_power, SignalName.POWER_W), SignalName.POWER_W, "reads 0 W under load"),
        (
            partial(_without_power, SignalName.ENERGY_RATE_W),
            SignalName.ENERGY_RATE_W,
            f"counts less than {_NO_POWER_W:.0f} W under load",
        ),
        (_without_use, SignalName.GFX_UTIL_PCT, f"reads 0 % at more than {_WORKING_W:.0f} W"),
        (_repeated, SignalName.POWER_W, "repeats that of another one, whose socket it shares"),
    ):
        if found := find(telemetry):
            yield found, _doubt(telemetry, sorted({gpu for gpu, _ in found}), what, signal)


def _doubt(telemetry: Telemetry, gpus: list[int], what: str, signal: SignalName) -> Doubt:
    names = [telemetry.gpus[gpu].names[0] for gpu in gpus]
    whose = f"GPU{'s' * (len(names) > 1)} {', '.join(names)}"
    text = f"{_WORDS[signal]} of {whose} {what}: left out"
    columns = _FIGURES[signal]
    return Doubt(DoubtKind.SENSOR.value, len(gpus), len(telemetry.gpus), signals=columns, text=text)


def _without(samples: SignalSamples, where: Mask) -> SignalSamples:
    return replace(samples, value=np.where(where, np.nan, samples.value))


def _own(telemetry: Telemetry, gpu: int, signal: SignalName) -> SignalSamples | None:
    """The GPU's own samples of a signal; None without any."""
    parts = telemetry.signals.get((gpu, signal), ())
    return next((each for each in parts if not each.part and len(each)), None)


def _at(samples: SignalSamples, other: SignalSamples) -> Float64:
    """The values of a signal at the times of another one: those of the nearest samples before."""
    place = np.searchsorted(samples.time_ns, other.time_ns, "right") - 1
    return samples.value[np.maximum(place, 0)]


def _without_power(signal: SignalName, telemetry: Telemetry) -> _Signals:
    """Power of GPUs that read none while they work."""
    found: _Signals = {}
    for gpu in range(len(telemetry.gpus)):
        use = _own(telemetry, gpu, SignalName.GFX_UTIL_PCT)
        power = _own(telemetry, gpu, signal)
        if power is None or use is None:
            continue
        wrong = (power.value < _NO_POWER_W) & (_at(use, power) > _LOADED_PCT)
        if wrong.any():
            parts = telemetry.signals[gpu, signal]
            found[gpu, signal] = [
                _without(each, wrong) if each is power else each for each in parts
            ]
    return found


def _without_use(telemetry: Telemetry) -> _Signals:
    """Use of GPUs whose counter stays at 0 while they draw the power of work."""
    found: _Signals = {}
    for gpu in range(len(telemetry.gpus)):
        use = _own(telemetry, gpu, SignalName.GFX_UTIL_PCT)
        power = _own(telemetry, gpu, SignalName.POWER_W)
        if use is None or power is None or np.nanmax(use.value, initial=0.0) > 0:
            continue
        if (power.value > _WORKING_W).mean() > 0.5:
            found[gpu, SignalName.GFX_UTIL_PCT] = [_without(use, np.ones(len(use), np.bool_))]
    return found


def _repeated(telemetry: Telemetry) -> _Signals:
    """Power of GPUs that repeats another one's, sample by sample, while it changes."""
    found: _Signals = {}
    seen: dict[tuple[bytes, bytes], int] = {}
    for gpu in range(len(telemetry.gpus)):
        power = _own(telemetry, gpu, SignalName.POWER_W)
        if power is None or len(power) < _FEWEST:
            continue
        if len(np.flatnonzero(np.diff(power.value))) < _FEWEST - 1:
            continue
        key = power.time_ns.tobytes(), power.value.tobytes()
        if seen.setdefault(key, gpu) != gpu:
            found[gpu, SignalName.POWER_W] = [_without(power, np.ones(len(power), np.bool_))]
    return found
