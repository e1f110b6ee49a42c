"""The places of GPUs: coordinates in the parallel layout, node, and slot in the node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from chopper_core.model.inputs import NO_DEVICE
from chopper_core.model.parallel import DIMENSIONS
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL

_PER_NODE = 8
"""GPUs of a node in CharLLM-PPT's clusters, whose telemetry names ranks alone."""


class Places(Struct, frozen=True, eq=False):
    """The places of some GPUs, in their order."""

    ranks: Sequence[int]
    dimensions: Sequence[str]
    """Those that the run has, the slowest first."""
    coordinates: Mapping[str, Sequence[int]]
    nodes: Sequence[str]
    """'' where unknown."""
    slots: Sequence[str]
    """'' where unknown."""
    row_labels: Sequence[str]
    column_keys: Sequence[tuple[int, ...]]
    column_labels: Sequence[str]
    across: str
    """The title of the columns."""

    def block_of(self, place: int) -> str:
        """The node's place within its row: GPUs of a block stand side by side."""
        row = self.row_labels[place]
        nodes = [n for n, other in zip(self.nodes, self.row_labels, strict=True) if other == row]
        return str(list(dict.fromkeys(nodes)).index(self.nodes[place]))

    def text(self, place: int) -> str:
        """Coordinates, node and slot: `pp 2, dp 1, tp 0, node 2, rear`."""
        parts = [f"{name} {self.coordinates[name][place]}" for name in self.dimensions]
        parts += [self.nodes[place], self.slots[place]]
        return ", ".join(part for part in parts if part)


def places_of(run: Run, gpus: Sequence[int]) -> Places:
    rank_of = {gpu.index: gpu.rank for gpu in run.gpus}
    ranks = [rank_of[gpu] for gpu in gpus]
    known = run.table.coordinates
    dimensions = [name for name in DIMENSIONS if name in known]
    coordinates = {name: [int(known[name][gpu]) for gpu in gpus] for name in dimensions}
    nodes, number_in_node = nodes_of(run, gpus)
    slots = [run.slots.get(number, "") if number >= 0 else "" for number in number_in_node]
    if dimensions:
        # The rows are the slowest dimension, the columns the others; ep counts within dp.
        across = [name for name in dimensions[1:] if name != "ep"]
        rows = [_label(dimensions[0], code) for code in coordinates[dimensions[0]]]
        keys = [tuple(coordinates[name][place] for name in across) for place in range(len(gpus))]
        # A replica is an expert rank too, the remainder of dp by ep: `5/1`.
        experts = coordinates.get("ep")
        texts = [
            " ".join(
                f"{code}/{experts[place]}" if experts and name == "dp" else str(code)
                for name, code in zip(across, key, strict=True)
            )
            for place, key in enumerate(keys)
        ]
        title = " ".join("dp/ep" if experts and name == "dp" else name for name in across)
    else:
        rows = [node or "unknown node" for node in nodes]
        keys = [
            (number if number >= 0 else rank,)
            for number, rank in zip(number_in_node, ranks, strict=True)
        ]
        texts = [str(key[0]) for key in keys]
        title = "GPU of the node"
    return Places(ranks, dimensions, coordinates, nodes, slots, rows, keys, texts, title)


def _label(dimension: str, code: int) -> str:
    return f"{dimension} {code}" if code != NO_LABEL else f"{dimension} unknown"


def nodes_of(run: Run, gpus: Sequence[int]) -> tuple[list[str], list[int]]:
    """The node of each GPU ('' if unknown) and the GPU's number in it (-1 if unknown).

    By hosts where they are known; else by devices, where their numbers repeat with the ranks.
    """
    of_gpu = {gpu.index: gpu for gpu in run.gpus}
    hosts = {source.rank: source.host for source in run.sources if source.host}
    per_node = _gpus_per_node(run)
    nodes, numbers = [], []
    for gpu in gpus:
        rank = of_gpu[gpu].rank
        host = hosts.get(rank, "")
        nodes.append(host or (f"node {rank // per_node}" if per_node else ""))
        if host and not per_node:
            own = sorted(r for r, other in hosts.items() if other == host)
            numbers.append(own.index(rank))
        else:
            numbers.append(rank % per_node if per_node else -1)
    return nodes, numbers


def _gpus_per_node(run: Run) -> int:
    """How many GPUs a node has, by the devices of the ranks; 0 if these don't say it."""
    devices = {gpu.rank: gpu.device for gpu in run.gpus if gpu.device != NO_DEVICE}
    if not devices:
        by_rank = any("CharLLM" in source.format for source in run.telemetry)
        return _PER_NODE if by_rank else 0
    different = sorted(set(devices.values()))
    size = len(different)
    repeats = all(different.index(device) == rank % size for rank, device in devices.items())
    return size if repeats and size > 1 else 0
