"""The packets of a Perfetto trace: slices of tracks, stages of GPUs, and counters.

Messages are those of the official package `perfetto` (extra `[perfetto]`). A packet's time is on
the clock that it, or its sequence, names; snapshots tie clocks to each other. Texts are interned
per sequence, until it says that its state is cleared. A slice of a track begins in one packet and
ends in another one; on a track they nest.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.losses import Losses
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress

PACKET_TAG: Final = 0x0A
"""Before each packet: field 1, of a length that follows."""
NEEDED: Final = "pip install 'chopper-tui[perfetto]'"
_MOST_BYTES: Final = 1 << 28
"""Of a packet, or of packets that one packet holds compressed."""
_MORE, _BITS = 0x80, 0x7F
_CLEARED: Final = 1
"""The flag of a sequence whose interned texts are cleared."""
_REALTIME, _BOOTTIME = 1, 6
_FIRST_OWN_CLOCK: Final = 64
"""Clocks from this number on belong to a sequence."""
_COMPUTE_ARGUMENTS: Final = 1001
"""The field of the names of a launch's arguments, which the package's messages lack."""


class PacketTrack(Struct):
    """A track: of a thread or a process, or named."""

    name: str = ""
    parent: int = 0
    process: int | None = None
    thread: int | None = None


class Slice(Struct):
    """A slice of a track, or a packet that ends one."""

    track: int
    time_ns: int
    is_end: bool
    name: str = ""
    category: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    end_ns: int = -1


class Stage(Struct):
    """An activity of a GPU."""

    start_ns: int
    duration_ns: int
    gpu: int
    queue: str
    stage: str
    name: str
    facts: dict[str, str]
    """Extra data by name."""
    sizes: tuple[tuple[int, ...], tuple[int, ...]] | None
    """Grid, in workgroups, and workgroup of a launch."""
    arguments: dict[str, int]
    """Of a launch, by name."""
    number: int
    waits: tuple[int, ...]
    """The numbers of those that it waits for."""


class GpuCounterSample(Struct):
    """A value of a GPU's counter."""

    gpu: int
    name: str
    time_ns: int
    value: float


class _Clock(Struct):
    """A clock of a sequence."""

    is_incremental: bool
    unit_ns: int
    value: int
    at_ns: int
    """The time of the trace at the value."""


class _Sequence(Struct):
    """What earlier packets of a sequence define for later ones."""

    default_clock: int = 0
    default_track: int = 0
    clocks: dict[int, _Clock] = field(default_factory=dict)
    texts: dict[str, dict[int, Any]] = field(default_factory=lambda: defaultdict(dict))


def packets_at(data: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of each packet that a text has whole; raises ValueError for other bytes."""
    place = 0
    while place < len(data):
        if data[place] != PACKET_TAG:
            raise ValueError("no packet")
        length, shift, at = 0, 0, place + 1
        while at < len(data) and shift < 64:
            length |= (data[at] & _BITS) << shift
            shift += 7
            at += 1
            if not data[at - 1] & _MORE:
                break
        else:
            if shift >= 64:
                raise ValueError("no length")
            return
        if length > _MOST_BYTES:
            raise ValueError("no packet is so long")
        if at + length > len(data):
            return
        yield at, at + length
        place = at + length


class PerfettoTrace:
    """One pass over the packets of a file: iterate over `rows`, then read the other fields."""

    def __init__(self, path: Path, losses: Losses) -> None:
        self.path, self.losses = path, losses
        self.tracks: dict[int, PacketTrack] = {}
        self.unused: dict[str, int] = defaultdict(int)
        """Packets that nothing is read from, by their kind."""
        self.epoch_offset_ns: int | None = None
        """From the time of the trace to that since the epoch, if it ties both."""
        self._sequences: dict[int, _Sequence] = defaultdict(_Sequence)
        self._clocks: dict[int, int] = {}
        """Builtin clock → from its time to that of the trace."""
        self._main = _BOOTTIME
        self._without_clock = 0

    def rows(self, progress: Progress) -> Iterator[Slice | Stage | GpuCounterSample]:
        """Yield what packets have, in the order of the file.

        Raises DataError without the package, and for a file whose first packet can't be read.
        """
        try:
            from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages
        except ImportError as error:
            raise DataError(
                f"{self.path} is a Perfetto trace, which the package perfetto reads: {NEEDED}"
            ) from error
        self._messages = messages
        count = 0
        for text in self._packets(progress):
            packet = messages.TracePacket()
            try:
                packet.ParseFromString(text)
            except ValueError:  # protobuf's DecodeError is one
                self.losses.unreadable_events += 1
                continue
            count += 1
            yield from self._rows_of(packet)
        if not count:
            raise DataError(f"{self.path} has no packet of a Perfetto trace that can be read.")
        self.losses.note(
            self._without_clock, "packet", "on a clock that no snapshot ties to the others left out"
        )

    def _packets(self, progress: Progress) -> Iterator[bytes]:
        rest = b""
        with ByteSource(self.path, foreign=False) as source:
            while piece := source.read():
                data, end = rest + piece, 0
                try:
                    for begin, end in packets_at(data):
                        yield data[begin:end]
                except ValueError:
                    self.losses.truncated = True
                    self.losses.lost_bytes += len(data) - end
                    self.losses.notes.append(
                        "The file is damaged: what follows a packet is none; read up to there."
                    )
                    return
                rest = data[end:]
                progress(f"read {self.path.name}", source.file_position, source.size_bytes)
            if rest or source.problem:
                self.losses.truncated = True
                self.losses.lost_bytes += len(rest)
                why = f" {source.problem}." if source.problem else ""
                self.losses.notes.append(f"The file ends in the middle of a packet.{why}")

    def _rows_of(self, packet: Any) -> Iterator[Slice | Stage | GpuCounterSample]:
        if packet.compressed_packets:
            yield from self._unpacked(packet.compressed_packets)
            return
        sequence = self._sequences[packet.trusted_packet_sequence_id]
        if packet.sequence_flags & _CLEARED or packet.incremental_state_cleared:
            sequence.texts.clear()
        if packet.previous_packet_dropped and packet.WhichOneof("data"):
            self.unused["(dropped before another)"] += 1
        if packet.HasField("interned_data"):
            self._intern(sequence, packet.interned_data)
        if packet.HasField("trace_packet_defaults"):
            defaults = packet.trace_packet_defaults
            sequence.default_clock = defaults.timestamp_clock_id or sequence.default_clock
            own = defaults.track_event_defaults
            sequence.default_track = own.track_uuid or sequence.default_track
        kind = packet.WhichOneof("data")
        if kind == "clock_snapshot":
            self._tie(sequence, packet.clock_snapshot)
        elif kind == "track_descriptor":
            self._describe(packet.track_descriptor)
        elif kind in ("track_event", "gpu_render_stage_event", "gpu_counter_event"):
            time_ns = self._time(sequence, packet)
            if time_ns is None:
                self._without_clock += 1
            elif kind == "track_event":
                yield from self._slices(sequence, packet.track_event, time_ns)
            elif kind == "gpu_render_stage_event":
                yield self._stage(sequence, packet.gpu_render_stage_event, time_ns)
            else:
                yield from self._samples(sequence, packet.gpu_counter_event, time_ns)
        elif kind is not None:
            self.unused[kind] += 1

    def _unpacked(self, data: bytes) -> Iterator[Slice | Stage | GpuCounterSample]:
        inflater = zlib.decompressobj()
        try:
            text = inflater.decompress(data, _MOST_BYTES)
            for begin, end in packets_at(text):
                yield from self._rows_of(self._messages.TracePacket.FromString(text[begin:end]))
        except (zlib.error, ValueError):
            self.losses.unreadable_events += 1

    def _intern(self, sequence: _Sequence, data: Any) -> None:
        texts = sequence.texts
        for kind in ("event_names", "event_categories", "debug_annotation_names"):
            texts[kind].update({each.iid: each.name for each in getattr(data, kind)})
        for each in data.debug_annotation_string_values:
            texts["values"][each.iid] = each.str.decode("utf-8", "replace")
        texts["stages"].update({each.iid: each.name for each in data.gpu_specifications})
        for each in data.gpu_counter_descriptors:
            names = {spec.counter_id: spec.name for spec in each.counter_descriptor.specs}
            texts["counters"][each.iid] = each.gpu_id, names
        texts["arguments"].update(self._argument_names(data))

    def _argument_names(self, data: Any) -> Iterator[tuple[int, str]]:
        from google.protobuf.unknown_fields import UnknownFieldSet

        for each in UnknownFieldSet(data):
            if each.field_number == _COMPUTE_ARGUMENTS and isinstance(each.data, bytes):
                own = self._messages.InternedComputeArgName.FromString(each.data)
                yield own.iid, own.name

    def _tie(self, sequence: _Sequence, snapshot: Any) -> None:
        clocks = {each.clock_id: each for each in snapshot.clocks}
        self._main = snapshot.primary_trace_clock or self._main
        known = [each for each in (self._main, *self._clocks, _BOOTTIME) if each in clocks]
        if not known:
            return
        reference = clocks[known[0]].timestamp + self._clocks.get(known[0], 0)
        for number, clock in clocks.items():
            if number < _FIRST_OWN_CLOCK:
                self._clocks.setdefault(number, reference - clock.timestamp)
            else:
                sequence.clocks[number] = _Clock(
                    clock.is_incremental, clock.unit_multiplier_ns or 1, clock.timestamp, reference
                )
        if _REALTIME in self._clocks:
            self.epoch_offset_ns = -self._clocks[_REALTIME]

    def _time(self, sequence: _Sequence, packet: Any) -> int | None:
        """The time of a packet on the clock of the trace; None where nothing ties its clock."""
        number = packet.timestamp_clock_id or sequence.default_clock or self._main
        if (clock := sequence.clocks.get(number)) is not None:
            if clock.is_incremental:
                clock.at_ns += packet.timestamp * clock.unit_ns
                return clock.at_ns
            return int(clock.at_ns + (packet.timestamp - clock.value) * clock.unit_ns)
        if number == self._main:
            return int(packet.timestamp)
        offset = self._clocks.get(number)
        return None if offset is None else int(packet.timestamp) + offset

    def _describe(self, given: Any) -> None:
        track = PacketTrack(given.name or given.static_name, given.parent_uuid)
        if given.HasField("process"):
            track.process = given.process.pid
            track.name = track.name or given.process.process_name
        if given.HasField("thread"):
            track.process, track.thread = given.thread.pid, given.thread.tid
            track.name = track.name or given.thread.thread_name
        known = self.tracks.get(given.uuid)
        if known is not None and not track.name:
            track.name = known.name
        self.tracks[given.uuid] = track

    def _slices(self, sequence: _Sequence, event: Any, time_ns: int) -> Iterator[Slice]:
        kinds = self._messages.TrackEvent
        if event.type not in (kinds.TYPE_SLICE_BEGIN, kinds.TYPE_SLICE_END):
            self.unused[f"track_event {kinds.Type.Name(event.type)}"] += 1
            return
        track = event.track_uuid or sequence.default_track
        if event.type == kinds.TYPE_SLICE_END:
            yield Slice(track, time_ns, True)
            return
        texts = sequence.texts
        name = event.name or texts["event_names"].get(event.name_iid, "")
        categories = [*event.categories]
        categories += [texts["event_categories"].get(each, "") for each in event.category_iids]
        arguments = {
            each.name or texts["debug_annotation_names"].get(each.name_iid, ""): self._value(
                texts, each
            )
            for each in event.debug_annotations
        }
        yield Slice(track, time_ns, False, name, ",".join(categories), arguments)

    def _value(self, texts: Mapping[str, Mapping[int, Any]], given: Any) -> Any:
        """The value of an annotation: a number, text, list or dict; None for any other."""
        if given.dict_entries:
            names = texts["debug_annotation_names"]
            return {
                each.name or names.get(each.name_iid, ""): self._value(texts, each)
                for each in given.dict_entries
            }
        if given.array_values:
            return [self._value(texts, each) for each in given.array_values]
        kind = given.WhichOneof("value")
        if kind == "string_value_iid":
            return texts["values"].get(given.string_value_iid)
        return None if kind in (None, "nested_value", "proto_value") else getattr(given, kind)

    def _stage(self, sequence: _Sequence, event: Any, time_ns: int) -> Stage:
        texts = sequence.texts
        launch = event.launch if event.HasField("launch") else None
        sizes = launch and tuple(
            (each.x, each.y, each.z) for each in (launch.grid_size, launch.workgroup_size)
        )
        return Stage(
            time_ns,
            event.duration,
            event.gpu_id,
            texts["stages"].get(event.hw_queue_iid, str(event.hw_queue_id)),
            texts["stages"].get(event.stage_iid, ""),
            event.name or texts["event_names"].get(event.name_iid, ""),
            {each.name: each.value for each in event.extra_data},
            sizes or None,
            {
                each.name or texts["arguments"].get(each.name_iid, ""): each.uint_value
                or each.int_value
                for each in (launch.args if launch else ())
            },
            event.event_id,
            tuple(event.event_wait_ids),
        )

    def _samples(self, sequence: _Sequence, event: Any, time_ns: int) -> Iterator[GpuCounterSample]:
        gpu, names = sequence.texts["counters"].get(
            event.counter_descriptor_iid, (event.gpu_id, {})
        )
        if event.HasField("counter_descriptor"):
            specs = event.counter_descriptor.specs
            names = {spec.counter_id: spec.name for spec in specs}
            sequence.texts["counters"][0] = event.gpu_id, names
        for each in event.counters:
            is_float = each.WhichOneof("value") == "double_value"
            value = float(each.double_value if is_float else each.int_value)
            name = names.get(each.counter_id, f"counter {each.counter_id}")
            yield GpuCounterSample(gpu, name, time_ns, value)


def paired_slices(slices: list[Slice]) -> list[Slice]:
    """The slices of one track with their ends; one without an end has -1.

    They nest by time. Of a begin and an end at one moment the end comes first, but for a slice
    without duration, whose begin and end follow each other.
    """
    order = []
    number = 0
    while number < len(slices):
        one = slices[number]
        after = slices[number + 1] if number + 1 < len(slices) else None
        is_moment = after is not None and not one.is_end and after.is_end
        if is_moment and after is not None and after.time_ns == one.time_ns:
            one.end_ns = one.time_ns
            number += 1
        else:
            order.append(one)
        number += 1
    order.sort(key=lambda each: (each.time_ns, not each.is_end))
    opened: list[Slice] = []
    for each in order:
        if not each.is_end:
            opened.append(each)
        elif opened:
            opened.pop().end_ns = each.time_ns
    return [each for each in slices if not each.is_end]
