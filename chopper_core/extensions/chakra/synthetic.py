"""Generated Chakra traces: common collectives and training steps on any number of ranks.

Nothing in them is measured. Computations last as long as they are told; a transfer begins when all
its members have arrived, and lasts as long as a ring at the given rate takes. Equal settings give
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

_NS_PER_US: Final = 1_000
_SIZE: Final = re.compile(r"(\d+)(?:([KMG])(i?)B?)?")
_MOST: Final = 10**12
_COMPUTE, _SENDS, _RECEIVES = range(3)
"""Streams."""


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


def settings_of(pattern: str, given: Sequence[str]) -> GeneratorSettings:
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
        """Add a computation, which waits for the one before it; returns its id."""
        start_ns = self._ready(rank, _COMPUTE, need)
        end_ns = start_ns + lasts_us * _NS_PER_US
        return self._add(rank, name, NodeType.COMP, _COMPUTE, start_ns, end_ns, need)

    def collective(self, kind: CommType, needs: Mapping[int, int]) -> dict[int, int]:
        """Add a collective of all ranks, which waits for a node of each; returns the ids."""
        size, ranks, name = self.settings.bytes, len(self.ranks), kind.name.lower()
        starts = {rank: self._ready(rank, _SENDS, needs.get(rank, 0)) for rank in self.ranks}
        end_ns = max(starts.values()) + self._transfer_ns(size * _MOVED[kind](ranks))
        is_gathered = kind == CommType.ALL_GATHER
        values: dict[str, Value] = {
            "comm_type": int(kind),
            "comm_size": size,
            "pg_name": str(WORLD),
            "bytes": size * ranks if is_gathered else size,
            "group": group_label(Collective(group_name=str(WORLD), group_size=ranks)),
        }
        return {
            rank: self._add(
                rank, name, NodeType.COMM_COLL, _SENDS, start, end_ns, needs.get(rank, 0), **values
            )
            for rank, start in starts.items()
        }

    def message(
        self, ends: tuple[int, int], tag: int, size: int, needs: tuple[int, int]
    ) -> tuple[int, int]:
        """Add a send and its receive, which wait for a node each; returns their ids."""
        sides = [(NodeType.COMM_SEND, _SENDS), (NodeType.COMM_RECV, _RECEIVES)]
        starts = [
            self._ready(rank, stream, need)
            for rank, (_, stream), need in zip(ends, sides, needs, strict=True)
        ]
        end_ns = max(starts) + self._transfer_ns(Fraction(size))
        values = dict(zip(("comm_src", "comm_dst"), ends, strict=True))
        values |= {"comm_tag": tag, "comm_size": size, "bytes": size}
        send, receive = (
            self._add(rank, PAIRWISE, kind, stream, start, end_ns, need, **values)
            for rank, (kind, stream), start, need in zip(ends, sides, starts, needs, strict=True)
        )
        return send, receive

    def _transfer_ns(self, moved: Fraction) -> int:
        # 1 GB/s is a byte per ns.
        return max(round(moved / self.settings.gb_s), 1)

    def _ready(self, rank: int, stream: int, need: int) -> int:
        ends = self._end_ns[rank]
        return max(ends[need], ends[self._last[rank, stream]])

    def _add(
        self,
        rank: int,
        name: str,
        kind: NodeType,
        stream: int,
        start_ns: int,
        end_ns: int,
        need: int,
        **values: Value,
    ) -> int:
        number, ends = len(self._end_ns[rank]), self._end_ns[rank]
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
        attributes = {
            key: Attribute(FEEDER_TYPES.get(key, TYPE_OF[type(value)]), value)
            for key, value in known.items()
        }
        stated = [0, *(each for before in needs for each in (before, 0))]
        attributes[STATED] = Attribute("int64_list", stated)
        start_us = round(start_ns / _NS_PER_US)
        node = Node(number, f"generated_{name}", kind, [], needs, start_us)
        node.duration_us = round(end_ns / _NS_PER_US) - start_us
        node.attributes = attributes
        self.nodes[rank].append(node)
        ends.append(end_ns)
        self._last[rank, stream] = number
        return number


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
        for iteration in range(program.settings.iterations):
            program.labels = {"iteration": iteration}
            program.collective(kind, {})

    return make


def _ring(program: _Program) -> None:
    """An all-reduce by messages: each rank passes on what it received."""
    ranks, settings = len(program.ranks), program.settings
    received = dict.fromkeys(program.ranks, 0)
    for iteration in range(settings.iterations):
        program.labels = {"iteration": iteration}
        for step in range(2 * (ranks - 1)):
            before = dict(received)
            for rank in program.ranks:
                to, size = (rank + 1) % ranks, -(-settings.bytes // ranks)
                needs = before[rank], before[to]
                _, received[to] = program.message((rank, to), step, size, needs)


def _layers(program: _Program, rank: int, phase: str, layers: Sequence[int], need: int) -> int:
    lasts_us = program.settings.compute_us * (2 if phase == "backward" else 1)
    for layer in layers:
        program.labels |= {"phase": phase, "layer": layer}
        need = program.compute(rank, phase, lasts_us, need)
    return need


def _optimizer(program: _Program, needs: Mapping[int, int]) -> None:
    program.labels = {"iteration": program.labels["iteration"], "phase": "optimizer"}
    for rank, need in needs.items():
        program.compute(rank, "optimizer", program.settings.compute_us, need)


def _data_parallel(program: _Program) -> None:
    """Each rank computes all layers; gradients are all-reduced layer by layer in backward."""
    layers = range(program.settings.layers)
    for iteration in range(program.settings.iterations):
        program.labels = {"iteration": iteration}
        for rank in program.ranks:
            _layers(program, rank, "forward", layers, 0)
        reduced: Mapping[int, int] = {}
        for layer in reversed(layers):
            needs = {rank: _layers(program, rank, "backward", [layer], 0) for rank in program.ranks}
            reduced = program.collective(CommType.ALL_REDUCE, needs)
        _optimizer(program, reduced)


def _pipeline(program: _Program) -> None:
    """Each rank is a stage: all micro-batches forward, then all backward.

    The messages of a rank come one after the other, as simulators run them.
    """
    settings, size = program.settings, program.settings.bytes
    last = len(program.ranks) - 1
    moved = dict.fromkeys(program.ranks, 0)
    tag = 0
    for iteration in range(settings.iterations):
        done = dict.fromkeys(program.ranks, 0)
        for phase, step in (("forward", 1), ("backward", -1)):
            for _ in range(settings.microbatches):
                for rank in program.ranks[::step]:
                    program.labels = {"iteration": iteration, "phase": phase}
                    got = 0
                    if rank != (0 if step > 0 else last):
                        tag, ends = tag + 1, (rank - step, rank)
                        sent, got = program.message(
                            ends, tag, size, (done[rank - step], moved[rank])
                        )
                        moved |= {rank - step: sent, rank: got}
                    layers = range(rank * settings.layers, (rank + 1) * settings.layers)
                    done[rank] = _layers(program, rank, phase, layers[::step], got)
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
        "a step of a stage per rank: micro-batches forward, then backward",
    ),
}
"""Pattern → how it is made, the settings that it takes, and what it is."""
