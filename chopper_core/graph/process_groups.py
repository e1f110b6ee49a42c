"""Process groups: which ranks form each, and along which dimension and between which nodes.

And the places of GPUs: coordinates in the parallel layout, node, and slot in the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.collective_ends import PAIRWISE, UNKNOWN, group_sizes, stated_size
from chopper_core.model.inputs import NO_DEVICE
from chopper_core.model.parallel import DIMENSIONS, Parallel, kind_of
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, KernelTable, Kind
from chopper_core.util.arrays import Index, Int64, Numbers
from chopper_core.util.grouping import distinct, grouped_by, places_by, sums_of
from chopper_core.util.patterns import late
from chopper_core.work.kernel_classes import UNNAMED

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
    rows: Sequence[str]
    """The labels of their rows in a grid."""
    columns: Sequence[tuple[tuple[int, ...], str]]
    """The order and label of their columns there."""
    across: str
    """The title of the columns."""

    def text(self, place: int) -> str:
        """Coordinates, node and slot: `pp 2, dp 1, tp 0, node 2, rear`."""
        parts = [f"{name} {self.coordinates[name][place]}" for name in self.dimensions]
        # A node that all are on tells none from another.
        is_shared = len(self.nodes) > 1 and len(set(self.nodes)) == 1
        parts += ["" if is_shared else self.nodes[place], self.slots[place]]
        return ", ".join(part for part in parts if part)


def places_of(run: Run, gpus: Sequence[int]) -> Places:
    ranks = [run.rank_of[gpu] for gpu in gpus]
    known = run.table.coordinates
    dimensions = [name for name in DIMENSIONS if name in known]
    coordinates = {name: [int(known[name][gpu]) for gpu in gpus] for name in dimensions}
    nodes, number_in_node = nodes_of(run, gpus)
    slots = [run.slots.get(number, "") if number >= 0 else "" for number in number_in_node]
    # The rows are the slowest dimension, the columns the others; ep counts within dp.
    across = [name for name in dimensions[1:] if name != "ep"]
    # A replica is an expert rank too, the remainder of dp by ep: `5/1`.
    experts = coordinates.get("ep")
    rows, columns = [], []
    for place, (rank, node, number) in enumerate(zip(ranks, nodes, number_in_node, strict=True)):
        key = tuple(coordinates[name][place] for name in across)
        if dimensions:
            code = coordinates[dimensions[0]][place]
            rows.append(f"{dimensions[0]} {'unknown' if code == NO_LABEL else code}")
        else:
            rows.append(node or "unknown node")
            key = (number if number >= 0 else rank,)
        texts = [str(code) for code in key]
        if experts and "dp" in across:
            texts[across.index("dp")] += f"/{experts[place]}"
        columns.append((key, " ".join(texts)))
    title = " ".join("dp/ep" if experts and name == "dp" else name for name in across)
    title = title if dimensions else "GPU of the node"
    return Places(ranks, dimensions, coordinates, nodes, slots, rows, columns, title)


def nodes_of(run: Run, gpus: Sequence[int]) -> tuple[list[str], list[int]]:
    """The node of each GPU ('' if unknown) and the GPU's number in it (-1 if unknown).

    By hosts where they are known; else by devices, where their numbers repeat with the ranks; else
    by clocks, of which ranks of one node share one.
    """
    hosts = {source.rank: source.host for source in run.sources if source.host}
    clocks = run.hosts if len(run.hosts) > 1 else ()
    by_clock = {rank: clock.name for clock in clocks for rank in clock.ranks}
    per_node = _gpus_per_node(run)
    ranks = [run.rank_of.get(gpu, -1) for gpu in gpus]
    if per_node:
        numbers = [rank % per_node for rank in ranks]
    else:
        of_host = grouped_by(sorted(hosts), hosts.__getitem__).values()
        number_of = {rank: number for own in of_host for number, rank in enumerate(own)}
        numbers = [number_of.get(rank, -1) for rank in ranks]
    nodes = [
        hosts.get(rank) or (f"node {rank // per_node}" if per_node else by_clock.get(rank, ""))
        for rank in ranks
    ]
    return nodes, numbers


def _gpus_per_node(run: Run) -> int:
    """How many GPUs a node has, by the devices of the ranks; 0 if these don't say it."""
    devices = {gpu.rank: gpu.device for gpu in run.gpus if gpu.device != NO_DEVICE}
    by_rank = any("CharLLM" in source.format for source in run.telemetry)
    if by_rank and len(devices) < len(run.gpus):
        # Traces of some ranks: their devices don't show where the numbers repeat.
        fits = all(device == rank % _PER_NODE for rank, device in devices.items())
        return _PER_NODE if fits else 0
    if not devices:
        return 0
    different = sorted(set(devices.values()))
    size = len(different)
    repeats = all(different.index(device) == rank % size for rank, device in devices.items())
    return size if repeats and size > 1 else 0


_IN_LABEL: Final = late(r"\(([^()]*)\)")
_P2P: Final = "pp"
"""The dimension along which ranks send and receive."""
DIMENSION: Final = "dimension"
NODES: Final = "nodes"
SIZE: Final = "size"
SPLITS: Final = (DIMENSION, NODES, SIZE)
_UNKNOWN: Final = "unknown"
_WHERE: Final = ("inside a node", "between nodes")
_SIZES: Final = (
    ("below 64 KiB", 1 << 16),
    ("64 KiB to 1 MiB", 1 << 20),
    ("1 to 16 MiB", 1 << 24),
    ("16 to 256 MiB", 1 << 28),
    ("256 MiB and more", 1 << 62),
)


def split_groups(run: Run) -> KernelTable:
    """The run's table with one label per process group, where the trace gives several one label.

    Groups of one label (`tp of 2` of 8 GPUs), and those without a name of which the trace states
    the size, are those of its lists of ranks; else the groups along the dimension that the label
    says, or that alone has that size. Sends and receives are along pp. What none of these tells
    keeps its label. The run's own table where no label needs splitting.
    """
    return run.memo(("process groups",), lambda: _told_apart(run))


def _told_apart(run: Run) -> KernelTable:
    table = run.table
    comm = np.flatnonzero((table.kind == Kind.COMM) & (table.group != NO_LABEL))
    _, shared = group_sizes(table.names, table.group[comm], table.gpu[comm])
    shared += [
        code
        for code in distinct(table.group[comm]).tolist()
        if code not in shared and table.names[code].startswith(UNNAMED)
    ]
    if not shared:
        return table
    sends = [code for code, name in enumerate(table.operations) if name.startswith(PAIRWISE)]
    names: dict[str, int] = {}
    groups = _RankGroups(run)
    group = table.group.copy()
    for code in shared:
        own = comm[table.group[comm] == code]
        pairwise = np.isin(table.operation[own], sends)
        for is_pairwise in (False, True):
            rows = own[pairwise == is_pairwise]
            new = np.full(int(table.gpu.max()) + 1, code, np.int32)
            for gpu in run.gpus:
                name, ranks = groups.of(table.names[code], gpu.rank, is_pairwise=is_pairwise)
                if ranks and gpu.index < len(new):
                    listed = ", ".join(map(str, ranks[:4])) + (" …" if len(ranks) > 4 else "")
                    label = f"{name} (ranks {listed}) of {len(ranks)}"
                    new[gpu.index] = len(table.names) + names.setdefault(label, len(names))
            group[rows] = new[table.gpu[rows]]
    return replace(table, group=group, names=(*table.names, *names)) if names else table


class _RankGroups:
    """The process groups that the ranks of a run are in, and their ranks.

    Each list of ranks is made once: to go through those of ten thousand ranks for each of these
    takes minutes.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._listed: dict[str, dict[int, set[int]]] = {}
        """Label → rank → the numbers of the lists of ranks that it is in."""
        numbers: dict[tuple[int, ...], int] = {}
        for each in run.groups:
            both = f"{each.name} ({each.description})"
            text = both if each.name and each.description else each.name or each.description
            number = numbers.setdefault(each.ranks, len(numbers))
            of_rank = self._listed.setdefault(text, {})
            for rank in each.ranks:
                of_rank.setdefault(rank, set()).add(number)
        self._lists = [*numbers]
        self._along: dict[tuple[str, tuple[str, ...]], dict[tuple[Any, ...], tuple[int, ...]]] = {}

    def of(
        self, label: str, rank: int, *, is_pairwise: bool = False
    ) -> tuple[str, tuple[int, ...]]:
        """The name of a rank's group with a label, and its ranks; () if unknown."""
        bare, size, parallel = _bare(label), stated_size(label), self._run.parallel
        sizes = {} if parallel is None else parallel.sizes
        # The dimension is what the label says; else that of its size, if one alone has it.
        dimension = kind_of_label(label)
        if not dimension and label.startswith(UNNAMED):
            able = [name for name in sizes if sizes[name] == size and (name == _P2P) == is_pairwise]
            dimension = able[0] if len(able) == 1 else ""
        dimension = dimension if dimension in sizes else ""
        name = dimension or bare if label.startswith(UNNAMED) else bare
        if listed := self._listed.get(bare, {}).get(rank):
            return name, self._lists[min(listed)] if len(listed) == 1 else ()
        own = {} if parallel is None else parallel.coordinates.get(rank, {})
        if parallel is None or dimension not in own or size not in (None, sizes[dimension]):
            return name, ()
        return name, self._ranks_along(parallel, dimension, own)

    def _ranks_along(
        self, parallel: Parallel, dimension: str, own: Mapping[str, int]
    ) -> tuple[int, ...]:
        # Experts share the data-parallel ranks, so that a group along dp has all of ep; one along
        # ep is neighbours along dp, as many as ep.
        free = {"dp", "ep"} if dimension in ("dp", "ep") else {dimension}
        experts = parallel.sizes["ep"] if dimension == "ep" else 0

        def place(at: Mapping[str, int]) -> tuple[int | None, ...]:
            block = (at["dp"] // experts,) if experts else ()
            return (*block, *(at.get(name) for name in own if name not in free))

        key = dimension, tuple(own)
        if key not in self._along:
            members = grouped_by(
                parallel.coordinates, lambda rank: place(parallel.coordinates[rank])
            )
            self._along[key] = {at: tuple(ranks) for at, ranks in members.items()}
        return self._along[key][place(own)]


def _bare(label: str) -> str:
    return label.rpartition(" of ")[0] if stated_size(label) else label


def kind_of_label(label: str) -> str:
    """The dimension in the label of a process group; '' if none."""
    label = _bare(label)
    found = [kind_of(each) for each in _IN_LABEL.findall(label)]
    return next(filter(None, found), "") or kind_of(label.partition(" (")[0])


def group_kinds(run: Run) -> dict[int, str]:
    """Code of a process group in `split_groups`'s names → its dimension, where it is known."""

    def found() -> dict[int, str]:
        table = split_groups(run)
        codes = [code for code in distinct(table.group).tolist() if code != NO_LABEL]
        return {code: kind for code in codes if (kind := kind_of_label(table.names[code]))}

    return run.memo(("kinds of groups",), found)


def known_group_sizes(run: Run, group: Numbers, gpu: Numbers) -> tuple[dict[int, int], list[int]]:
    """Group (a code of `split_groups`) → number of its ranks, and groups with more GPUs than ranks.

    Not for a group that doesn't state it, where the job has more ranks than are seen.
    """
    names = split_groups(run).names
    sizes, shared = group_sizes(names, group, gpu)
    if UNKNOWN in sizes:
        sizes[UNKNOWN] = len(distinct(gpu))
    # Of several jobs, the ranks that the traces state.
    if run.world > len(run.gpus):
        sizes = {
            code: size for code, size in sizes.items() if code >= 0 and stated_size(names[code])
        }
    return sizes, shared


def split_of(run: Run, rows: Index, by: str) -> tuple[Int64, list[str]]:
    """The code of each activity of a split, and the text of each code; `NO_LABEL` is the last."""
    if by == DIMENSION:
        table = split_groups(run)
        known = np.full(len(table.names) + 1, NO_LABEL, np.int64)
        for code, kind in group_kinds(run).items():
            known[code] = DIMENSIONS.index(kind)
        return known[table.group[rows]], [*DIMENSIONS, _UNKNOWN]
    if by == SIZE:
        size = run.table.bytes[rows]
        bounds = np.array([below for _, below in _SIZES])
        codes = np.searchsorted(bounds, size, "right").astype(np.int64)
        return np.where(size < 0, NO_LABEL, codes), [*(text for text, _ in _SIZES), _UNKNOWN]
    return _between_nodes(run, rows), [*_WHERE, _UNKNOWN]


def _between_nodes(run: Run, rows: Index) -> Int64:
    """0 for groups inside a node, 1 for those over several, `NO_LABEL` where it is unknown."""
    table, rank_of = split_groups(run), run.rank_of
    node_of = dict(zip(rank_of.values(), nodes_of(run, list(rank_of))[0], strict=True))
    found = np.full(len(rows), NO_LABEL, np.int64)
    group, gpu_of = table.group[rows], table.gpu[rows]
    comm = np.flatnonzero(table.kind == Kind.COMM)
    of_group, groups = places_by(table.group[comm]), _RankGroups(run)

    @cache
    def is_over_several(ranks: tuple[int, ...]) -> int:
        places = {node_of.get(rank, "") for rank in ranks}
        return NO_LABEL if not ranks or "" in places else int(len(places) > 1)

    for code, of_code in places_by(group).items():
        label = table.names[code] if code != NO_LABEL else ""
        size = stated_size(label)
        if size != run.world and code < len(run.table.names):
            for gpu, own in places_by(gpu_of[of_code]).items():
                found[of_code[own]] = is_over_several(groups.of(label, rank_of[gpu])[1])
            continue
        members = distinct(table.gpu[comm[of_group.get(code, comm[:0])]]).tolist()
        is_whole = size == run.world
        ranks = run.ranks if is_whole else tuple(rank_of[member] for member in members)
        if len(ranks) == size:
            found[of_code] = is_over_several(ranks)
    return found


def expert_note(run: Run, rows: Index) -> tuple[str, ...]:
    table = run.table
    exchange = [
        code
        for code, name in enumerate(table.operations)
        if "all_to_all" in name.lower() or "alltoall" in name.lower()
    ]
    own = rows[np.isin(table.operation[rows], exchange) & (table.bytes[rows] >= 0)]
    if not len(own):
        return ()
    gpus = distinct(table.gpu[own])
    moved = sums_of(table.bytes[own], np.searchsorted(gpus, table.gpu[own]), len(gpus))
    if len(gpus) < 2 or not moved.mean():
        return ()
    most = int(moved.argmax())
    return (
        f"all-to-all: GPU {gpus[most]} moves {moved[most] / moved.mean():.2f} times the mean of "
        f"{len(gpus)} GPUs: its experts, or tables of a recommender, are loaded unevenly",
    )
