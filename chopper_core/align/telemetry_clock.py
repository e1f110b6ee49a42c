"""Putting telemetry and CPU samples on the run's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.activity_fit import (
    Activity,
    averages_at,
    likelihood_gain,
    period_of,
    refined,
    sliding_fit,
)
from chopper_core.model.inputs import TelemetrySource
from chopper_core.model.signals import CpuSamples, IntegralCurve, nearest
from chopper_core.model.table import KernelTable, Kind
from chopper_core.sources.cpu import CpuTable
from chopper_core.sources.signals import ClockDomain, SignalName, SignalSamples, Telemetry
from chopper_core.util.arrays import Float64, Int64, Mask

REACH_PERIODS: Final = 8
"""Sampling periods around a sample in which it is valid."""
_ACTIVITY_SIGNALS: Final = (SignalName.POWER_W, SignalName.GFX_UTIL_PCT, SignalName.GFX_MHZ)
"""Signals that follow GPU work, the best first."""
_MIN_CORRELATION: Final = 0.6
_MIN_CORRELATION_OF_OTHERS: Final = 0.9
"""Where the best signal decides nothing, others must leave no doubt: a few dips fit elsewhere."""
_CHANCE_LEVEL: Final = 0.3
_CHANCE: Final = 4.0
"""Unrelated signals reach the chance level and this over the root of the number of bins."""
_CHANCE_AS_SEEN: Final = 2.0
"""Less is enough where the file has many other places, all of which fit worse."""
_PHASES: Final = 3
"""Places tried per sampling period."""
_CLEAR: Final = 0.8
"""Share of the best correlation at which a second place makes it ambiguous."""
_QUARTER_NS: Final = 15 * 60 * 1_000_000_000
_WEST: Final = -12 * 4
_EAST: Final = 14 * 4
_ZONE_DOUBT_NS: Final = 5_000_000_000
"""Maximum offset between the clocks of two hosts."""
_MAX_BINS: Final = 1 << 21
_MIN_BINS: Final = 20
LIKELIER: Final = 12.0
"""The difference of log-likelihoods at which a second place nearly as good is none."""


class KnownClock(Struct, frozen=True):
    """The offset of a clock to the run's, and the reason."""

    offset_ns: int
    why: str


class Estimate(Struct, frozen=True):
    """An offset to the run's clock, and how it was found."""

    offset_ns: int
    uncertainty_ns: int
    method: str
    late_ns: int = 0
    """How far stamps lie behind the middle of what their samples average."""


def place(
    telemetry: Telemetry,
    table: KernelTable,
    gpus: Mapping[int, int],
    clocks: Mapping[ClockDomain, KnownClock],
    shift_ns: int = 0,
) -> TelemetrySource:
    """Find the offset of a file: by its clock where that is known on the run's, else by signals.

    `gpus` maps GPUs of the file to those of the run, `clocks` gives the corrections of clocks.
    `shift_ns` is added to the offset that is found; without one it is the whole offset.
    """
    found = Recording(telemetry, table, gpus).offset(clocks, shift_ns)
    known = None if isinstance(found, str) else found
    offset_ns, method = (known.offset_ns, known.method) if known else (None, str(found))
    if gpus and telemetry.resolution_ns:
        offset_ns, method = shifted(offset_ns, method, shift_ns)
    return TelemetrySource(
        path=str(telemetry.path),
        format=telemetry.format,
        clock=str(telemetry.clock),
        offset_ns=offset_ns,
        uncertainty_ns=known.uncertainty_ns if known else 0,
        method=method,
        gpus=gpus,
        samples=sum(len(samples) for parts in telemetry.signals.values() for samples in parts),
        notes=(*telemetry.notes, *telemetry.losses.notes),
        late_ns=known.late_ns if known else 0,
    )


def shifted(offset_ns: int | None, method: str, shift_ns: int) -> tuple[int | None, str]:
    """An offset with the user's shift added, which is the whole offset where none was found."""
    if not shift_ns:
        return offset_ns, method
    by_hand = f"{shift_ns / 1e9:+.9g} s set by hand"
    if offset_ns is None:
        return shift_ns, f"{by_hand}: {method}"
    return offset_ns + shift_ns, f"{method}, {by_hand}"


class Recording(Struct, frozen=True):
    """A telemetry file and the run whose clock it is put on."""

    telemetry: Telemetry
    table: KernelTable
    gpus: Mapping[int, int]
    """GPU of the file → GPU of the run."""

    def offset(self, clocks: Mapping[ClockDomain, KnownClock], shift_ns: int) -> Estimate | str:
        """The offset of the file before the user's shift, or a reason."""
        telemetry = self.telemetry
        if not self.gpus:
            return "none of its GPUs is in the run"
        if telemetry.resolution_ns == 0:
            return "its samples have no timestamps"
        known = clocks.get(telemetry.clock)
        if known is not None:
            if self._covers(known.offset_ns + shift_ns):
                late_ns = self._lateness(known.offset_ns + shift_ns)
                return Estimate(known.offset_ns, telemetry.resolution_ns, known.why, late_ns)
            if telemetry.clock is ClockDomain.EPOCH:
                return "by its clock it doesn't overlap the run"
        if telemetry.clock is ClockDomain.LOCAL and ClockDomain.EPOCH in clocks:
            return self._in_a_zone(clocks[ClockDomain.EPOCH].offset_ns)
        return self.estimate()

    def _stamps(self) -> list[Int64]:
        return [each.time_ns for parts in self.telemetry.signals.values() for each in parts]

    def _span(self) -> tuple[int, int]:
        """The run's first start and last end, with a stamp's resolution on either side."""
        doubt = self.telemetry.resolution_ns
        ends = self.table.start_ns + self.table.duration_ns
        return int(self.table.start_ns.min()) - doubt, int(ends.max()) + doubt

    def _covers(self, shift_ns: int) -> bool:
        """Whether any sample of the shifted file lies within the run."""
        begin, end = self._span()
        return any(((t + shift_ns >= begin) & (t + shift_ns <= end)).any() for t in self._stamps())

    def _in_a_zone(self, epoch_ns: int) -> Estimate | str:
        """The offset of local time without a zone: the zone in which it covers the run.

        Zones are multiples of 15 minutes. Where several fit, the signals decide.
        """
        stamps = [times for times in self._stamps() if len(times)]
        first, last = min(int(t[0]) for t in stamps), max(int(t[-1]) for t in stamps)
        begin, end = self._span()
        doubt = self.telemetry.resolution_ns
        fitting = [
            zone
            for zone in range(_WEST * _QUARTER_NS, (_EAST + 1) * _QUARTER_NS, _QUARTER_NS)
            if first - zone + epoch_ns <= begin + 2 * doubt
            and last - zone + epoch_ns >= end - 2 * doubt
        ]
        if not fitting:
            return "it doesn't cover the run in any time zone"
        zone, how = fitting[0], "the only zone in which it covers the run"
        if len(fitting) > 1:
            found = self.estimate()
            if isinstance(found, str):
                return f"local time that covers the run in {len(fitting)} zones, and {found}"
            zone = min(fitting, key=lambda zone: abs(epoch_ns - zone - found.offset_ns))
            if abs(epoch_ns - zone - found.offset_ns) > _ZONE_DOUBT_NS + found.uncertainty_ns:
                return f"local time of no whole zone, though {found.method}"
            how = f"of {len(fitting)} zones the one that is {found.method}"
        text = f"local time of {_zone_text(zone)}{', ' if len(fitting) == 1 else ': '}{how}"
        return Estimate(epoch_ns - zone, doubt, text)

    def estimate(self) -> Estimate | str:
        """The offset at which a signal follows the activity of the trace best, or a reason.

        The share of time in which anything ran, and in which compute did, slides over the signal;
        the mean of the GPUs' multiple correlations peaks at the offset. Samples are taken for means
        since the sample before if they fit better so. The uncertainty is half the distance of the
        samples, as a tool may stamp the middle of what it averages, and three standard deviations
        of the peak.
        """
        reasons: list[str] = []
        for signal in _ACTIVITY_SIGNALS:
            if any((number, signal) in self.telemetry.signals for number in self.gpus):
                found = self._estimated(signal, is_first=not reasons)
                if isinstance(found, Estimate):
                    return found
                reasons.append(found)
        return reasons[0] if reasons else "it has no signal that follows the work of a GPU"

    def _estimated(self, signal: SignalName, *, is_first: bool) -> Estimate | str:
        recorded = self._recorded(signal)
        if recorded is None:
            return f"its {signal.value} has too few samples"
        every, period, (begin, end) = recorded.samples, recorded.period_ns, recorded.span
        first = min(int(samples.time_ns[0]) for samples in every)
        last = max(int(samples.time_ns[-1]) for samples in every)
        if last - first < end - begin:
            return "it covers less time than the trace"
        step = max(period, (last - first) // _MAX_BINS)
        bins = int((end - begin) // step)
        if bins < _MIN_BINS:
            return "the trace is too short for its sampling interval"
        work = recorded.work(self.table)
        shares = [each.means(begin + step * np.arange(bins + 1.0)) for each in work]
        curves = [nearest(s.time_ns, s.value, REACH_PERIODS * period) for s in every]
        peak = peak_of(shares, curves, (first, last), step)
        places = [
            refined(work, every, recorded.span, at, period) for at in (peak.place, peak.second)
        ]
        known = [one for one in places if one is not None]
        if not known:
            return f"too few samples of its {signal.value} lie within the trace"
        best = max(known, key=lambda one: one.fit)
        others = [one.fit for one in known if one != best]
        rival = max([peak.rival if best is places[0] else peak.best, *others])
        chance = _CHANCE if peak.elsewhere < bins else _CHANCE_AS_SEEN
        least = _MIN_CORRELATION if is_first else _MIN_CORRELATION_OF_OTHERS
        if best.fit < max(least, _CHANCE_LEVEL + chance / np.sqrt(bins)):
            return (
                f"its {signal.value} doesn't follow the trace (correlation {best.fit:.2f} at best)"
            )
        if rival > _CLEAR * best.fit and likelihood_gain(best.fit, rival, bins) < LIKELIER:
            return f"its {signal.value} fits at several places ({best.fit:.2f} and {rival:.2f})"
        how = "means since the sample before" if best.averages else "instants"
        return Estimate(
            begin - best.begin_ns,
            period // 2 + best.doubt_ns,
            f"estimated from {signal.value}, taken for {how}, against activity, correlation "
            f"{best.fit:.2f} (next place {rival:.2f})",
            period // 2 if best.averages else 0,
        )

    def _recorded(self, signal: SignalName) -> _Recorded | None:
        """The samples of a signal; None where no GPU has enough."""
        pairs = [
            (samples, self.table.gpu == gpu)
            for number, gpu in self.gpus.items()
            if (samples := own_figure(self.telemetry, number, signal)) is not None
            and len(samples) > 2
        ]
        pairs = [(samples, rows) for samples, rows in pairs if rows.any()]
        if not pairs:
            return None
        every, rows_of = zip(*pairs, strict=True)
        used = np.logical_or.reduce(rows_of)
        begin = int(self.table.start_ns[used].min())
        end = int((self.table.start_ns + self.table.duration_ns)[used].max())
        return _Recorded(every, rows_of, period_of(every), (begin, end))

    def _lateness(self, offset_ns: int) -> int:
        """How far stamps of known offset lie behind the middle of what they average.

        Half a period where samples are means since the sample before, and 0 where that is in doubt.
        """
        for signal in _ACTIVITY_SIGNALS:
            recorded = self._recorded(signal)
            if recorded is None or all(each.begin_ns is not None for each in recorded.samples):
                continue
            period, (begin, end) = recorded.period_ns, recorded.span
            if (end - begin) // max(period, 1) < _MIN_BINS:
                return 0
            work = recorded.work(self.table)
            late = averages_at(work, recorded.samples, recorded.span, begin - offset_ns, period)
            return period // 2 if late else 0
        return 0


class _Recorded(Struct, frozen=True):
    """A signal of some GPUs of the run, and the rows of their activities."""

    samples: Sequence[SignalSamples]
    rows: Sequence[Mask]
    period_ns: int
    span: tuple[int, int]
    """From the first start to the last end of the activities."""

    def work(self, table: KernelTable) -> list[Activity]:
        computes = np.equal(table.kind, Kind.COMPUTE)
        return [
            Activity.of(table.start_ns[rows], table.duration_ns[rows], computes[rows], self.span)
            for rows in self.rows
        ]


def _zone_text(zone_ns: int) -> str:
    minutes = abs(zone_ns) // 60_000_000_000
    return f"UTC{'-' if zone_ns < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"


class Peak(Struct, frozen=True):
    """The place on the file's clock at which signals follow activity best."""

    place: int
    best: float
    """Its correlation."""
    second: int
    """The best place elsewhere."""
    rival: float
    elsewhere: int
    """How many places there are, in bins."""


def peak_of(
    shares: Sequence[tuple[Float64, Float64]],
    curves: Sequence[IntegralCurve],
    reach_ns: tuple[int, int],
    step: int,
) -> Peak:
    """The best of all places at which activity can lie within the samples.

    They are a part of a step apart: between two samples the correlation falls.
    """
    first, last = reach_ns
    bins = len(shares[0][0])
    places = int((last - first) // step) - bins + 1
    fits = []
    for phase in range(_PHASES):
        bounds = first + phase * step / _PHASES + step * np.arange(places + bins + 0.0)
        each = [
            sliding_fit(own, curve.means(bounds)) for own, curve in zip(shares, curves, strict=True)
        ]
        fits.append(np.mean(each, axis=0))
    coarse = np.stack(fits, axis=1).ravel()
    peak = int(np.argmax(coarse))
    away = np.abs(np.arange(len(coarse)) - peak) > _PHASES * max(bins // 50, 3)
    second = int(np.argmax(np.where(away, coarse, -1.0)))
    rival = float(coarse[second]) if away.any() else 0.0
    at = first + step / _PHASES * np.array([peak, second])
    elsewhere = int(away.sum()) // _PHASES
    return Peak(int(at[0]), float(coarse[peak]), int(at[1]), rival, elsewhere)


def own_figure(telemetry: Telemetry, number: int, signal: SignalName) -> SignalSamples | None:
    """A GPU's own samples of a signal, not those of its parts."""
    parts = telemetry.signals.get((number, signal), ())
    return next((samples for samples in parts if samples.part == ""), None)


def placed_cpu(
    file: CpuTable,
    span: tuple[int, int],
    telemetry: Sequence[TelemetrySource],
    epoch_ns: int | None,
    shift_ns: int = 0,
) -> CpuSamples:
    """The samples of a file within the run's span, and one on either side.

    A file on the run's clock gets `epoch_ns`, the correction of its host (None if the run isn't on
    the epoch). A file on another clock takes the offset of telemetry on the same clock.
    `shift_ns` is added; without a known offset it is the whole offset.
    """
    offset_ns, uncertainty_ns, method = _offset_of_cpu(file, telemetry, epoch_ns)
    offset_ns, method = shifted(offset_ns, method, shift_ns)
    inside = slice(0, 0)
    if offset_ns is not None:
        times = file.times_ns + offset_ns
        low = int(np.searchsorted(times, span[0]))
        high = int(np.searchsorted(times, span[1], "right"))
        if low < high or 0 < low < len(times):
            inside = slice(max(low - 1, 0), high + 1)
        else:
            offset_ns, method = None, f"{method}: it doesn't overlap the run"
    return CpuSamples(
        str(file.path),
        file.format,
        str(file.clock),
        offset_ns,
        uncertainty_ns,
        method,
        len(file.times_ns),
        file.notes,
        file.cpus,
        file.cores,
        file.times_ns[inside] + (offset_ns or 0),
        file.percent[inside],
    )


def _offset_of_cpu(
    file: CpuTable, telemetry: Sequence[TelemetrySource], epoch_ns: int | None
) -> tuple[int | None, int, str]:
    if file.clock is ClockDomain.EPOCH and epoch_ns is not None:
        corrected = f", corrected by {epoch_ns} ns as its host's" if epoch_ns else ""
        return epoch_ns, 1, f"its clock is the run's{corrected}"
    alike = [
        source
        for source in telemetry
        if source.clock == str(file.clock) and source.offset_ns is not None
    ]
    if file.clock in (ClockDomain.MONOTONIC, ClockDomain.BOOTTIME) and alike:
        finest = min(alike, key=lambda source: source.uncertainty_ns)
        return finest.offset_ns, finest.uncertainty_ns, f"as {finest.path}, on the same clock"
    return None, 0, f"its clock ({file.clock}) is not the run's, and no telemetry has the same"
