"""Checks of telemetry: readings that contradict the GPU's other readings are left out, and said."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.column_names import integral_of, known_of, samples_in
from chopper_core.model.doubts import Doubt, DoubtKind
from chopper_core.model.hardware import hardware_of
from chopper_core.model.inputs import Gpu
from chopper_core.model.signals import Signal
from chopper_core.model.table import KernelTable, Kind
from chopper_core.sources.signals import SignalName, SignalSamples, Telemetry
from chopper_core.util.arrays import Float64, Mask
from chopper_core.util.grouping import (
    distinct,
    means_of,
    median_of,
    quantiles_of,
    ranked,
    ratios,
    run_starts,
)
from chopper_core.work.kernel_classes import MATRIX_CLASSES, kernel_classes

_Signals = dict[tuple[int, SignalName], Sequence[SignalSamples]]
_LOADED_PCT: Final = 20.0
"""A GPU that is used more isn't off."""
_NO_POWER_W: Final = 1.0
_NO_CLOCK_MHZ: Final = 100.0
"""A clock that computes is higher; a lower number is in another unit, or of no sensor."""
_NO_USE_PCT: Final = 1.0
"""Nor does one that works: a ratio that is called per cent is no more."""
_WORKING_W: Final = 250.0
"""No GPU idles at more power."""
_FEWEST: Final = 10
"""Samples that tell whether two figures contradict, or repeat, each other."""
_REPEATED: Final = 0.9
"""The part of the changes of a reading that another one shares where both are of one socket."""
_PARTITIONS: Final = 8
"""A socket has no more partitions, one after the other."""
_WHOLE_GPUS: Final = ("dcgm", "nvidia", "nsight")
"""How tools of NVIDIA's GPUs are called: each of these is a socket of its own, and the instances of
one (MIG) have its number."""
_LONG_NS: Final = 3 * 10**9
_MOST_OFF: Final = 1.5
"""Energy over the integral of power, in a file that is long."""
_MOST_OFF_SHORT: Final = 1.8
"""The same in a short one, in which power may be a mean of the time before."""
_TIMES_TDP: Final = 2.5
"""Short peaks of power reach some 1.6 times the limit."""
_TIMES_CLOCK: Final = 1.6
"""The highest clock over that of the published peaks."""
_ENERGY: Final = (SignalName.ENERGY_RATE_W, SignalName.ENERGY_J)
_MOST: Final[Mapping[SignalName, tuple[float, float]]] = {
    SignalName.POWER_W: (0.0, 5_000.0),
    SignalName.GFX_MHZ: (0.0, 6_000.0),
    SignalName.MEM_MHZ: (0.0, 40_000.0),
    SignalName.HOTSPOT_C: (-60.0, 150.0),
    SignalName.MEM_C: (-60.0, 150.0),
    SignalName.EDGE_C: (-60.0, 150.0),
}
"""The least and the most that any GPU reaches."""
_WORDS: Final = {
    SignalName.POWER_W: "power",
    SignalName.ENERGY_RATE_W: "energy counter",
    SignalName.ENERGY_J: "energy counter",
    SignalName.GFX_UTIL_PCT: "use",
    SignalName.GFX_MHZ: "clock",
    SignalName.MEM_MHZ: "memory clock",
    SignalName.POWER_CAP_W: "power cap",
    SignalName.HOTSPOT_C: "temperature",
    SignalName.MEM_C: "memory temperature",
    SignalName.EDGE_C: "edge temperature",
}
_FIGURES: Final = {
    SignalName.POWER_W: ("power_w", "energy_j"),
    SignalName.ENERGY_RATE_W: ("energy_rate_w",),
    SignalName.ENERGY_J: ("energy_rate_w", "energy_j"),
}
"""The columns that a signal gives, where they aren't its own."""
_OF_SOCKETS: Final = "repeats that of the socket they share: each has its part"
_MAX_ROWS: Final = 1 << 18
"""Of a larger table evenly chosen activities are compared."""
_LONG_KERNEL_NS: Final = 2_000
"""Shorter ones don't follow the clock."""
_FAR_CLOCK: Final = 0.15
"""Of the logarithm of a clock to the usual one: some 15 %."""
_FOLLOWED: Final = 0.2
"""Of what a clock makes a kernel longer that is bound by it: matrix kernels follow it by more."""
_MOSTLY: Final = 0.8
_STUCK_CHANGES: Final = 50
"""A reading that doesn't change, while it usually would as often, is that of before."""
_STUCK_NS: Final = 5 * 10**9
_AT_CAP: Final = 0.97
"""Of its cap a GPU may draw the same all the time."""
_OVER_CAP: Final = 1.2
"""Of a cap, the median power: it holds on the average, whatever the peaks."""
_COVERED: Final = 0.9
"""The part of a run that telemetry has to cover."""


def all_believed(read: Sequence[Telemetry], product: str = "") -> list[Telemetry]:
    """Files of telemetry without readings that can't be, also where the signal that contradicts
    one is in another file of the same clock."""
    return [believed(each, product, _of_others(each, read)) for each in read]


def _of_others(telemetry: Telemetry, read: Sequence[Telemetry]) -> _Signals:
    """Use and power of a file's GPUs, from other files of its clock."""
    found: _Signals = {}
    if len(read) == 1 or telemetry.is_of_node:
        return found
    number = {gpu.names[0]: place for place, gpu in enumerate(telemetry.gpus)}
    for other in read:
        if other is telemetry or other.is_of_node or other.clock != telemetry.clock:
            continue
        for (gpu, signal), parts in other.signals.items():
            place = number.get(other.gpus[gpu].names[0])
            if place is not None and signal in (SignalName.POWER_W, SignalName.GFX_UTIL_PCT):
                found.setdefault((place, signal), parts)
    return found


def believed(
    telemetry: Telemetry, product: str = "", of_others: _Signals | None = None
) -> Telemetry:
    """The telemetry without readings that can't be, and with the doubts about them; `product` is
    that of the run's GPUs, where the file doesn't name it, `of_others` signals of other files."""
    if telemetry.is_of_node:
        return telemetry
    others = of_others or {}
    doubts = [*telemetry.doubts, *_jumps(telemetry)]
    for find, signal, what in (
        (_beyond, SignalName.POWER_W, "is beyond what they can draw"),
        (_beyond, SignalName.GFX_MHZ, "is beyond what they reach"),
        (_beyond, SignalName.MEM_MHZ, "is beyond what they reach"),
        (_beyond, SignalName.HOTSPOT_C, "is beyond what they withstand"),
        (_beyond, SignalName.MEM_C, "is beyond what they withstand"),
        (_beyond, SignalName.EDGE_C, "is beyond what they withstand"),
        (_without_power, SignalName.POWER_W, "reads 0 W under load"),
        (_stuck, SignalName.POWER_W, "doesn't change under load"),
        (_without_clock, SignalName.GFX_MHZ, f"reads less than {_NO_CLOCK_MHZ:.0f} MHz under load"),
        (_without_clock, SignalName.MEM_MHZ, f"reads less than {_NO_CLOCK_MHZ:.0f} MHz under load"),
        (_zeros, SignalName.POWER_CAP_W, "reads 0 W"),
        (_exceeded, SignalName.POWER_CAP_W, "is far below the power"),
        (_zeros, SignalName.MEM_C, "reads 0 °C"),
        (_zeros, SignalName.HOTSPOT_C, "reads 0 °C"),
        (_zeros, SignalName.EDGE_C, "reads 0 °C"),
        (
            _standing,
            SignalName.ENERGY_RATE_W,
            f"counts less than {_NO_POWER_W:.0f} W under load",
        ),
        (
            _without_use,
            SignalName.GFX_UTIL_PCT,
            f"reads at most {_NO_USE_PCT:.0f} % at more than {_WORKING_W:.0f} W",
        ),
        (_repeated, SignalName.POWER_W, _OF_SOCKETS),
        (_repeated, SignalName.ENERGY_J, _OF_SOCKETS),
        (_contradicted, SignalName.ENERGY_RATE_W, "contradicts its power"),
    ):
        known = replace(telemetry, signals={**others, **telemetry.signals})
        every = find(known, signal, product)
        if found := {key: parts for key, parts in every.items() if key in telemetry.signals}:
            gpus = sorted({gpu for gpu, _ in found})
            telemetry = replace(telemetry, signals={**telemetry.signals, **found})
            doubts.append(_doubt(telemetry, gpus, what, signal))
    return replace(telemetry, doubts=tuple(doubts)) if doubts else telemetry


def _doubt(telemetry: Telemetry, gpus: list[int], what: str, signal: SignalName) -> Doubt:
    names = [telemetry.gpus[gpu].names[0] for gpu in gpus]
    whose = f"GPU{'s' if len(names) > 1 else ''} {', '.join(names)}"
    what = what if len(names) > 1 else what.replace("they", "it").replace("it reach", "it reaches")
    what = what.replace("it withstand", "it withstands")
    text = f"{_WORDS[signal]} of {whose} {what}{': left out' if what != _OF_SOCKETS else ''}"
    columns = _FIGURES.get(signal, (signal.value,))
    count, of = len(gpus), len(telemetry.gpus)
    return Doubt(
        DoubtKind.SENSOR.value, count, of, signals=columns, gpus=tuple(gpus), text=text
    )  # fmt: skip


def _jumps(telemetry: Telemetry) -> Iterator[Doubt]:
    columns = tuple(dict.fromkeys(signal.value for _, signal in telemetry.signals))
    for text in telemetry.losses.jumps:
        yield Doubt(DoubtKind.SENSOR.value, 1, 0, signals=columns, text=text)


def _without(samples: SignalSamples, where: Mask) -> SignalSamples:
    return replace(samples, value=np.where(where, np.nan, samples.value))


def _none_of(telemetry: Telemetry, gpu: int, *signals: SignalName) -> _Signals:
    """The samples of signals of a GPU, without any value."""
    return {
        (gpu, signal): [_without(each, np.ones(len(each), np.bool_)) for each in parts]
        for signal in signals
        if (parts := telemetry.signals.get((gpu, signal)))
    }


def _own(telemetry: Telemetry, gpu: int, signal: SignalName) -> SignalSamples | None:
    """The GPU's own samples of a signal; None without any."""
    parts = telemetry.signals.get((gpu, signal), ())
    return next((each for each in parts if not each.part and len(each)), None)


def _at(samples: SignalSamples, other: SignalSamples) -> Float64:
    """The values of a signal at the times of another one: those of the nearest samples before."""
    place = np.searchsorted(samples.time_ns, other.time_ns, "right") - 1
    return samples.value[np.maximum(place, 0)]


def _beyond(telemetry: Telemetry, signal: SignalName, product: str) -> _Signals:
    """Readings that no GPU reaches, nor one of this product."""
    found: _Signals = {}
    low, high = _MOST[signal]
    for gpu, name in enumerate(telemetry.gpus):
        hardware, most = hardware_of(name.model or product), high
        if hardware is not None:
            own = {
                SignalName.POWER_W: _TIMES_TDP * hardware.tdp_w,
                SignalName.GFX_MHZ: _TIMES_CLOCK * hardware.clock_mhz,
            }
            most = min(high, own.get(signal, inf))
        parts = telemetry.signals.get((gpu, signal), ())
        with np.errstate(invalid="ignore"):
            wrong = [(each.value < low) | (each.value > most) for each in parts]
        if any(each.any() for each in wrong):
            found[gpu, signal] = list(map(_without, parts, wrong))
    return found


def _without_power(telemetry: Telemetry, _: SignalName, _product: str) -> _Signals:
    """Power of GPUs that read none while they work, or while nothing says that they don't."""
    found: _Signals = {}
    for gpu in range(len(telemetry.gpus)):
        use = _own(telemetry, gpu, SignalName.GFX_UTIL_PCT)
        power = _own(telemetry, gpu, SignalName.POWER_W)
        if power is None:
            continue
        wrong = power.value < _NO_POWER_W
        if use is not None:
            wrong &= _at(use, power) > _LOADED_PCT
        if wrong.any():
            parts = telemetry.signals[gpu, SignalName.POWER_W]
            kept = [_without(each, wrong) if each is power else each for each in parts]
            found[gpu, SignalName.POWER_W] = kept
            energy = _own(telemetry, gpu, SignalName.ENERGY_RATE_W)
            if energy is not None and np.nanmax(energy.value, initial=0.0) < _NO_POWER_W:
                found |= _none_of(telemetry, gpu, *_ENERGY)
    return found


def _without_clock(telemetry: Telemetry, signal: SignalName, _: str) -> _Signals:
    """Clocks that hardly tick while their GPU works: by its use, or without one by its power."""
    found: _Signals = {}
    for gpu in range(len(telemetry.gpus)):
        parts = telemetry.signals.get((gpu, signal), ())
        load, least = _own(telemetry, gpu, SignalName.GFX_UTIL_PCT), _LOADED_PCT
        if load is None:
            load, least = _own(telemetry, gpu, SignalName.POWER_W), _WORKING_W
        if load is None:
            continue
        with np.errstate(invalid="ignore"):
            wrong = [(each.value < _NO_CLOCK_MHZ) & (_at(load, each) > least) for each in parts]
        if any(each.any() for each in wrong):
            found[gpu, signal] = list(map(_without, parts, wrong))
    return found


def _stuck(telemetry: Telemetry, signal: SignalName, product: str) -> _Signals:
    """Power that stays exactly the same while its GPU works, and not at its cap, for a time in
    which the readings of the file usually change many times."""
    own = {
        gpu: each for gpu in range(len(telemetry.gpus)) if (each := _own(telemetry, gpu, signal))
    }
    longest = {gpu: _longest_run(each.value) for gpu, each in own.items()}
    outside = [np.delete(np.diff(own[gpu].value), slice(*longest[gpu])) for gpu in own]
    changes = np.concatenate([np.empty(0), *outside])
    often = np.count_nonzero(changes) / max(len(changes), 1)
    found: _Signals = {}
    for gpu, (first, last) in longest.items():
        power = own[gpu]
        inside = np.arange(len(power)) > first
        inside &= np.arange(len(power)) <= last
        if often * (last - first) < _STUCK_CHANGES:
            continue
        if power.time_ns[last] - power.time_ns[first] < _STUCK_NS:
            continue
        use = _own(telemetry, gpu, SignalName.GFX_UTIL_PCT)
        if use is None or np.nan_to_num(_at(use, power)[inside]).mean() <= _LOADED_PCT:
            continue
        cap = _own(telemetry, gpu, SignalName.POWER_CAP_W)
        hardware = hardware_of(telemetry.gpus[gpu].model or product)
        most = hardware.tdp_w if hardware is not None else inf
        most = float(np.nanmin(cap.value, initial=inf)) if cap is not None else most
        if power.value[first] < _AT_CAP * most:
            parts = telemetry.signals[gpu, signal]
            found[gpu, signal] = [
                _without(each, inside) if each is power else each for each in parts
            ]
    return found


def _exceeded(telemetry: Telemetry, signal: SignalName, _: str) -> _Signals:
    """Power caps far below what their GPU draws half of the time or more."""
    found: _Signals = {}
    for gpu in range(len(telemetry.gpus)):
        cap, power = (_own(telemetry, gpu, each) for each in (signal, SignalName.POWER_W))
        if cap is None or power is None or len(power) < _FEWEST:
            continue
        ratio = power.value / _at(cap, power)
        if median_of(ratio[np.isfinite(ratio)]) > _OVER_CAP:
            found |= _none_of(telemetry, gpu, signal)
    return found


def _longest_run(values: Float64) -> tuple[int, int]:
    """The first and the last place of the longest run of equal values."""
    starts = run_starts(values)
    sizes = np.diff(starts, append=len(values))
    at = int(np.argmax(sizes))
    return int(starts[at]), int(starts[at] + sizes[at] - 1)


def _zeros(telemetry: Telemetry, signal: SignalName, _: str) -> _Signals:
    """Temperatures and power caps that are exactly 0, as drivers give them of a sensor that a GPU
    lacks, or that can't be read."""
    found: _Signals = {}
    for gpu in range(len(telemetry.gpus)):
        parts = telemetry.signals.get((gpu, signal), ())
        if any((each.value == 0).any() for each in parts):
            found[gpu, signal] = [_without(each, each.value == 0) for each in parts]
    return found


def _standing(telemetry: Telemetry, signal: SignalName, _: str) -> _Signals:
    """Energy counters that hardly rise while their GPU works."""
    found: _Signals = {}
    if not telemetry.resolution_ns:
        return found  # Nobody knows in which time.
    for gpu in range(len(telemetry.gpus)):
        use = _own(telemetry, gpu, SignalName.GFX_UTIL_PCT)
        energy = _own(telemetry, gpu, signal)
        if use is None or energy is None:
            continue
        if ((energy.value < _NO_POWER_W) & (_at(use, energy) > _LOADED_PCT)).any():
            found |= _none_of(telemetry, gpu, *_ENERGY)
    return found


def _without_use(telemetry: Telemetry, signal: SignalName, _: str) -> _Signals:
    """Use of GPUs whose counter stays at 0 while they draw the power of work, or is a ratio."""
    found: _Signals = {}
    for gpu in range(len(telemetry.gpus)):
        use = _own(telemetry, gpu, signal)
        power = _own(telemetry, gpu, SignalName.POWER_W)
        if use is None or power is None or np.nanmax(use.value, initial=0.0) > _NO_USE_PCT:
            continue
        if (power.value > _WORKING_W).mean() > 0.5:
            found |= _none_of(telemetry, gpu, signal)
    return found


def _repeated(telemetry: Telemetry, signal: SignalName, _: str) -> _Signals:
    """A reading that GPUs repeat from one another, change by change, is that of their socket: each
    has its part of it, so that a socket counts once in every sum."""
    if telemetry.format.casefold().startswith(_WHOLE_GPUS):
        return {}
    sockets: list[list[int]] = []
    for gpu in range(len(telemetry.gpus)):
        own = _own(telemetry, gpu, signal)
        if own is None or len(own) < _FEWEST:
            continue
        for socket in sockets[-_PARTITIONS:]:
            first = _own(telemetry, socket[0], signal)
            if first is not None and _repeats(own, first):
                socket.append(gpu)
                break
        else:
            sockets.append([gpu])
    columns = _ENERGY if signal in _ENERGY else (signal, SignalName.POWER_CAP_W)
    return {
        (gpu, each): [replace(part, value=part.value / len(socket)) for part in parts]
        for socket in sockets
        if len(socket) > 1
        for gpu in socket
        for each in columns
        if (parts := telemetry.signals.get((gpu, each)))
    }


def _repeats(one: SignalSamples, other: SignalSamples) -> bool:
    count = min(len(one), len(other))
    if abs(len(one) - len(other)) > (1 - _REPEATED) * count:
        return False
    mine, theirs = one.value, other.value[:count] if len(one) == len(other) else _at(other, one)
    changed = np.flatnonzero(np.diff(mine, prepend=mine[:1]) != 0)
    if len(changed) < _FEWEST - 1:
        return False
    return bool((mine[changed] == theirs[changed]).mean() >= _REPEATED)


def _contradicted(telemetry: Telemetry, signal: SignalName, _: str) -> _Signals:
    """Energy that rises faster, or slower, than the power says."""
    found: _Signals = {}
    if not telemetry.resolution_ns:
        return found  # Nobody knows in which time.
    for gpu in range(len(telemetry.gpus)):
        energy = _own(telemetry, gpu, signal)
        power = _own(telemetry, gpu, SignalName.POWER_W)
        if energy is None or power is None or energy.begin_ns is None:
            continue
        begin, end = int(energy.begin_ns[0]), int(energy.time_ns[-1])
        inside = (power.time_ns >= begin) & (power.time_ns <= end) & np.isfinite(power.value)
        known = np.isfinite(energy.value)
        if min(np.count_nonzero(inside), np.count_nonzero(known)) < _FEWEST:
            continue
        took = (energy.time_ns - energy.begin_ns)[known]
        rises = float(np.average(energy.value[known], weights=np.maximum(took, 1)))
        at, drawn = power.time_ns[inside], power.value[inside]
        # By the trapezoidal rule, which NumPy before 2.0 has under another name.
        steps = np.diff(at)
        mean = float(((drawn[1:] + drawn[:-1]) / 2 * steps).sum() / max(int(steps.sum()), 1))
        most = _MOST_OFF if end - begin >= _LONG_NS else _MOST_OFF_SHORT
        if not (mean <= most * rises and rises <= most * mean):
            found |= _none_of(telemetry, gpu, *_ENERGY)
    return found


def coverage(
    measured: Mapping[str, Signal],
    gpus: Sequence[Gpu],
    span: tuple[int, int],
    left_out: Collection[str],
) -> Iterator[Doubt]:
    """Signals that most GPUs have and others lack, or that cover a part of the run only; but for
    those of which readings were left out, which is another doubt."""
    part, lowest, without = [], 1.0, dict[str, tuple[int, ...]]()
    numbers = [gpu.index for gpu in gpus]
    for name, signal in measured.items():
        own = [signal.curves[gpu] for gpu in numbers if gpu in signal.curves]
        if not own or "." in name or name in left_out:
            continue
        if len(numbers) > len(own) > len(numbers) / 2:
            without[name] = tuple(gpu for gpu in numbers if gpu not in signal.curves)
        bounds = np.array(span)
        known = [float(np.diff(curve.integrals(bounds)[1])[0]) for curve in own]
        shares = [each / max(span[1] - span[0], 1) for each in known]
        if (share := float(np.mean(shares))) < _COVERED:
            part.append(name)
            lowest = min(lowest, share)
    if part:
        text = f"telemetry covers {100 * lowest:.0f} % of the run's time: {', '.join(part)}"
        count = round(100 * lowest)
        yield Doubt(DoubtKind.COVERAGE.value, 100 - count, 100, signals=_columns(part), text=text)
    if without:
        lacking = sorted({gpu for each in without.values() for gpu in each})
        whose = f"GPU{'s' if len(lacking) > 1 else ''} {', '.join(map(str, lacking))}"
        text = f"telemetry lacks {whose}: {', '.join(without)}"
        yield Doubt(
            DoubtKind.COVERAGE.value,
            len(lacking), len(numbers), signals=_columns([*without]), gpus=tuple(lacking),
            text=text,
        )  # fmt: skip


def without_clocks(
    measured: Mapping[str, Signal], table: KernelTable, gpus: Sequence[int]
) -> tuple[dict[str, Signal], KernelTable]:
    """The signals of a run and the columns of its activities without the clock of some GPUs."""
    kept = {}
    for name, signal in measured.items():
        if name.partition(".")[0] == SignalName.GFX_MHZ:
            curves = {gpu: curve for gpu, curve in signal.curves.items() if gpu not in gpus}
            signal = replace(signal, curves=curves)
        if signal.curves:
            kept[name] = signal
    name, rows = SignalName.GFX_MHZ.value, np.isin(table.gpu, gpus)
    columns = {
        each: np.where(rows, np.nan, table.measured[each])
        for each in (integral_of(name), known_of(name), samples_in(name))
    }
    return kept, table.with_measured(columns)


def unlike_kernels(table: KernelTable) -> Iterator[Doubt]:
    """GPUs whose clock reads far from the others', or from their own in other steps, while their
    matrix kernels don't follow it: the clock sets the pace of these, so that the reading is wrong.

    Compared are like kernels (name, operation, phase), by the means of a GPU and step.
    """
    name = SignalName.GFX_MHZ.value
    if known_of(name) not in table.measured:
        return
    table = table.take(slice(None, None, -(-len(table) // _MAX_ROWS) or 1))
    rows = np.flatnonzero((table.kind == Kind.COMPUTE) & (table.duration_ns >= _LONG_KERNEL_NS))
    codes, place = ranked(table.kernel[rows])
    classes = kernel_classes([table.names[code] for code in codes.tolist()])
    rows = rows[np.array([each in MATRIX_CLASSES for each in classes], np.bool_)[place]]
    mhz = ratios(*(table.measured[each][rows] for each in (integral_of(name), known_of(name))))
    rows, mhz = rows[mhz > 0], mhz[mhz > 0]
    if not len(rows):
        return
    like = table.kernel[rows].astype(np.int64) * (len(table.operations) + 1) + table.operation[rows]
    _, like = ranked(((like + 1) << 8) + table.phase[rows])
    _, step = ranked(table.iteration[rows])
    numbers, gpu = ranked(table.gpu[rows])
    steps = int(step.max()) + 1
    cell, owner = ranked((like * len(numbers) + gpu) * steps + step)
    took = table.duration_ns[rows]
    clock, duration = (np.log(means_of(each, owner, len(cell))) for each in (mhz, took))
    like, gpu_and_step = np.divmod(cell, len(numbers) * steps)
    count = int(like.max()) + 1
    usual = [quantiles_of(each, like, count, (0.5,))[like, 0] for each in (clock, duration)]
    _, place = ranked(gpu_and_step)
    off, longer = (
        means_of(each - middle, place)
        for each, middle in zip((clock, duration), usual, strict=True)
    )
    whose = distinct(gpu_and_step) // steps
    is_far = np.abs(off) > _FAR_CLOCK
    contradicts = is_far & (-np.sign(off) * longer < _FOLLOWED * np.abs(off))
    for at, number in enumerate(numbers.tolist()):
        own = is_far & (whose == at)
        if not own.any() or contradicts[own].mean() < _MOSTLY:
            continue
        by, more = (100 * float(np.expm1(each[own].mean())) for each in (off, longer))
        take = f"{abs(more):.0f} % {'shorter' if more < 0 else 'longer'}"
        text = (
            f"clock of GPU {number} reads {abs(by):.0f} % {'lower' if by < 0 else 'higher'} than "
            f"usual, but its matrix kernels take {take if abs(more) >= 1 else 'as long'}: left out"
        )
        yield Doubt(
            DoubtKind.SENSOR.value, 1, len(numbers), signals=(name,), gpus=(number,), text=text
        )


def _columns(names: Sequence[str]) -> tuple[str, ...]:
    of_energy = ["energy_j"] if {"power_w", "energy_rate_w"} & {*names} else []
    return tuple(dict.fromkeys((*names, *of_energy)))
