"""Generated Chakra traces: common collectives and training steps on any number of ranks.

Nothing in them is measured. Computations take the time that is asked for. A transfer begins when
all its members have arrived, and takes as long as a ring at the given rate. Equal settings give
equal bytes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from chopper_core.align.collectives import group_label
from chopper_core.extensions.chakra.et import write_et
from chopper_core.extensions.chakra.execution_graph import RULES
from chopper_core.extensions.chakra.graph import KEPT, STATED
from chopper_core.extensions.chakra.lint import FEEDER_TYPES, GROUP_FILE, WORLD
from chopper_core.extensions.chakra.schema import (
    TYPE_OF,
    Attribute,
    CommType,
    Metadata,
    Node,
    NodeType,
    Value,
    typed,
)
from chopper_core.graph.collectives import PAIRWISE
from chopper_core.model.table import Rule
from chopper_core.render.exports import new_folder
from chopper_core.sources.trace import Collective
from chopper_core.util.errors import UsageError

_SIZE: Final = re.compile(r"(\d+)(?:([KMG])(i?)B?)?")
_MOST: Final = 10**12
_COMPUTE, _SENDS, _RECEIVES = range(3)
"""Streams."""
_Member = tuple[int, int, NodeType, int]
"""Rank, stream, type, and the id of a node that it waits for, or 0."""


class GeneratorSettings(Struct, frozen=True):
    """What a trace is generated with."""

    ranks: int = 8
    bytes: int = 10**6
    """What a rank puts into a collective or a message; a layer's gradients, or activations."""
    iterations: int = 1
    gb_s: int = 100
    """Rate of a rank's link in GB/s."""
    layers: int = 4
    """Of each rank."""
    compute_us: int = 100
    """Forward pass of a layer in µs; the backward pass takes twice as long."""
    microbatches: int = 4


def pattern_settings(pattern: str, given: Sequence[str]) -> GeneratorSettings:
    """The settings in texts `name=value`; raises UsageError for what a pattern doesn't take."""
    if pattern not in PATTERNS:
        raise UsageError(f"unknown pattern {pattern!r}; the patterns are {', '.join(PATTERNS)}")
    names, values = PATTERNS[pattern][1], {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in names:
            raise UsageError(f"{pattern} takes no {name!r}; it takes {', '.join(names)}")
        match = _SIZE.fullmatch(value)
        least = 2 if name == "ranks" else 1
        power = " KMG".index((match and match[2]) or " ")
        number = int(match[1]) * (1024 if match[3] else 1000) ** power if match else 0
        if not least <= number < _MOST:
            raise UsageError(f"{text!r} is not a number of at least {least}, such as {name}=4")
        values[name] = number
    return GeneratorSettings(**values)


def generate(pattern: str, settings: GeneratorSettings, path: Path) -> int:
    """Write the traces of a pattern to a new folder; returns the number of nodes."""
    make, names, _ = PATTERNS[pattern]
    program = _Program(settings)
    for iteration in range(settings.iterations):
        program.labels = {"iteration": iteration}
        make(program)
    shown = " ".join(f"{name}={asdict(settings)[name]}" for name in names)
    values: dict[str, Value] = {
        "schema": "chopper.et/1",
        "generator": "chopper",
        "world_size": settings.ranks,
        "generated": f"chopper generate {pattern} {shown}",
        KEPT: ["comm_src", "comm_dst", "comm_tag", "comm_size"],
    }
    with new_folder(path) as folder:
        for rank, nodes in enumerate(program.nodes):
            attributes = {name: typed(value) for name, value in (values | {"rank": rank}).items()}
            with (folder / f"generated_{pattern}.{rank}.et").open("wb") as file:
                write_et(file, Metadata("1.0.0", attributes), nodes)
        (folder / GROUP_FILE).write_text("{}\n", encoding="utf-8")
    return sum(map(len, program.nodes))


class _Program:
    """The nodes of all ranks, added in an order in which all that a node waits for is there."""

    def __init__(self, settings: GeneratorSettings) -> None:
        self.settings = settings
        self.ranks = range(settings.ranks)
        self.nodes: list[list[Node]] = [[] for _ in self.ranks]
        self.labels: dict[str, int | str] = {}
        """Those of the nodes that are added next."""
        self._end_ns: list[list[int]] = [[0] for _ in self.ranks]
        """Of each rank by id; 0 is no node."""
        self._last: defaultdict[tuple[int, int], int] = defaultdict(int)
        """Rank and stream → the node that was added last."""

    def compute(self, rank: int, name: str, lasts_us: int, need: int = 0) -> int:
        (added,) = self._add(name, lasts_us * 1_000, [(rank, _COMPUTE, NodeType.COMP, need)])
        return added

    def collective(self, kind: CommType, needs: Sequence[int]) -> list[int]:
        """Add a collective of all ranks, which waits for a node of each."""
        size, ranks = self.settings.bytes, len(self.ranks)
        return self._add(
            kind.name.lower(),
            self._transfer_ns(size * _MOVED[kind](ranks)),
            [(rank, _SENDS, NodeType.COMM_COLL, need) for rank, need in enumerate(needs)],
            comm_type=int(kind),
            comm_size=size,
            pg_name=str(WORLD),
            bytes=size * ranks if kind == CommType.ALL_GATHER else size,
            group=group_label(Collective(group_name=str(WORLD), group_size=ranks)),
        )

    def message(
        self, ends: tuple[int, int], tag: int, size: int, needs: Sequence[int]
    ) -> list[int]:
        """Add a send and its receive, which wait for a node each."""
        return self._add(
            PAIRWISE,
            self._transfer_ns(Fraction(size)),
            [
                (ends[0], _SENDS, NodeType.COMM_SEND, needs[0]),
                (ends[1], _RECEIVES, NodeType.COMM_RECV, needs[1]),
            ],
            comm_src=ends[0],
            comm_dst=ends[1],
            comm_tag=tag,
            comm_size=size,
            bytes=size,
        )

    def _transfer_ns(self, moved: Fraction) -> int:
        # 1 GB/s is a byte per ns.
        return max(round(moved / self.settings.gb_s), 1)

    def _add(
        self, name: str, lasts_ns: int, members: Sequence[_Member], **values: Value
    ) -> list[int]:
        """Add nodes that end together, some time after the last of them begins; returns their ids.

        Each waits for the one before it in its stream.
        """
        begins = [
            max(self._end_ns[rank][before] for before in (need, self._last[rank, stream]))
            for rank, stream, _, need in members
        ]
        end_ns, added = max(begins) + lasts_ns, []
        for (rank, stream, kind, need), start_ns in zip(members, begins, strict=True):
            added.append(number := len(self._end_ns[rank]))
            needs = sorted({need, self._last[rank, stream]} - {0})
            known = {
                "is_cpu_op": False,
                "stream": stream,
                "ts_ns": start_ns,
                "dur_ns": end_ns - start_ns,
                "op": name,
                "rules": " ".join([Rule.ANNOTATION.name] * len(RULES)),
                **self.labels,
                **values,
            }
            kinds = {key: FEEDER_TYPES.get(key, TYPE_OF[type(each)]) for key, each in known.items()}
            attributes = {key: Attribute(kinds[key], value) for key, value in known.items()}
            stated = [0, *(each for before in needs for each in (before, 0))]
            attributes[STATED] = Attribute("int64_list", stated)
            start_us = round(start_ns / 1e3)
            node = Node(number, f"generated_{name}", kind, [], needs, start_us)
            node.duration_us, node.attributes = round(end_ns / 1e3) - start_us, attributes
            self.nodes[rank].append(node)
            self._end_ns[rank].append(end_ns)
            self._last[rank, stream] = number
        return added


_MOVED: Final[Mapping[CommType, Callable[[int], Fraction]]] = {
    CommType.ALL_REDUCE: lambda ranks: Fraction(2 * (ranks - 1), ranks),
    CommType.ALL_GATHER: lambda ranks: Fraction(ranks - 1),
    CommType.REDUCE_SCATTER: lambda ranks: Fraction(ranks - 1, ranks),
    CommType.ALL_TO_ALL: lambda ranks: Fraction(ranks - 1, ranks),
    CommType.BROADCAST: lambda _: Fraction(1),
}
"""How many times its bytes a rank sends in a ring."""


def _of_collective(kind: CommType) -> Callable[[_Program], None]:
    def make(program: _Program) -> None:
        program.collective(kind, [0] * len(program.ranks))

    return make


def _ring(program: _Program) -> None:
    """An all-reduce by messages: each rank passes on what it received."""
    ranks = len(program.ranks)
    received = [0] * ranks
    for step in range(2 * (ranks - 1)):
        before = list(received)
        for rank in program.ranks:
            to, size = (rank + 1) % ranks, -(-program.settings.bytes // ranks)
            received[to] = program.message((rank, to), step, size, (before[rank], before[to]))[1]


def _layers(program: _Program, rank: int, phase: str, layers: Sequence[int], need: int = 0) -> int:
    for layer in layers:
        program.labels |= {"phase": phase, "layer": layer}
        lasts_us = program.settings.compute_us * (2 if phase == "backward" else 1)
        need = program.compute(rank, phase, lasts_us, need)
    return need


def _optimizer(program: _Program, needs: Sequence[int]) -> None:
    program.labels = {"iteration": program.labels["iteration"], "phase": "optimizer"}
    for rank, need in enumerate(needs):
        program.compute(rank, "optimizer", program.settings.compute_us, need)


def _data_parallel(program: _Program) -> None:
    """Each rank computes all layers; gradients are all-reduced layer by layer in backward."""
    layers = range(program.settings.layers)
    reduced = [_layers(program, rank, "forward", layers) for rank in program.ranks]
    for layer in reversed(layers):
        needs = [_layers(program, rank, "backward", [layer]) for rank in program.ranks]
        reduced = program.collective(CommType.ALL_REDUCE, needs)
    _optimizer(program, reduced)


def _pipeline(program: _Program) -> None:
    """Each rank is a stage: all micro-batches forward, then all backward.

    The messages of a rank come one after the other, as simulators run them.
    """
    settings, first = program.settings, dict(program.labels)
    done, moved = [0] * settings.ranks, [0] * settings.ranks
    for phase, step in (("forward", 1), ("backward", -1)):
        for number in range(settings.microbatches):
            for rank in program.ranks[::step]:
                program.labels = {**first, "phase": phase}
                got, before = 0, rank - step
                if 0 <= before < settings.ranks:
                    ends, needs = (before, rank), (done[before], moved[rank])
                    moved[before], got = program.message(ends, number, settings.bytes, needs)
                    moved[rank] = got
                own = range(rank * settings.layers, (rank + 1) * settings.layers)
                done[rank] = _layers(program, rank, phase, own[::step], got)
    _optimizer(program, done)


_OF_TRANSFERS: Final = ("ranks", "bytes", "iterations", "gb_s")
_OF_STEPS: Final = (*_OF_TRANSFERS, "layers", "compute_us")
PATTERNS: Final[Mapping[str, tuple[Callable[[_Program], None], tuple[str, ...], str]]] = {
    kind.name.lower(): (_of_collective(kind), _OF_TRANSFERS, "a collective of all ranks")
    for kind in _MOVED
} | {
    "ring": (_ring, _OF_TRANSFERS, "an all-reduce of sends and receives around a ring"),
    "data_parallel": (_data_parallel, _OF_STEPS, "a step whose gradients are all-reduced"),
    "pipeline": (
        _pipeline,
        (*_OF_STEPS, "microbatches"),
        "a step with a stage per rank, all forward, then all backward",
    ),
}
"""Pattern → how it is made, the settings that it takes, and what it is."""
