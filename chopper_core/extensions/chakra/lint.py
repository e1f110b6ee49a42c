"""The rules that Chakra's feeders and ASTRA-sim have for `.et` files, checked without them.

Feeders read a wrong integer type as 0, stop early at a dependency that is missing, or abort;
ASTRA-sim returns 0 even where ranks never finish. Here each violation is a sentence. The members of
a communicator have to run the same collectives: those of a run are compared as those of files are.
Sources: mlcommons/chakra `src/feeder` and `src/feeder_v3`, astra-sim `Workload.cc`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import MsgspecError, Struct, field
from msgspec.json import decode as json_decode
from msgspec.structs import replace

from chopper_core.align.collectives import group_label
from chopper_core.extensions.chakra import et, feeder_json
from chopper_core.extensions.chakra.et import EtFile, unknown_fields
from chopper_core.extensions.chakra.graph import cycle_of
from chopper_core.extensions.chakra.schema import (
    COMMUNICATION,
    MEMORY,
    PAIRWISE,
    CommType,
    Node,
    NodeType,
)
from chopper_core.extensions.chakra.walk import WalkedNode, has_fixed_order, stops, walked
from chopper_core.graph.collectives import Transfer, by_ends
from chopper_core.graph.process_groups import known_group_sizes, split_groups
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, RECOMPUTE_SUFFIX, KernelTable, Kind
from chopper_core.sources.registry import files_at
from chopper_core.sources.trace import Collective
from chopper_core.store.format import is_store, read_index
from chopper_core.tables.losses import number_of
from chopper_core.tables.text import FileHead
from chopper_core.util.arrays import Index
from chopper_core.util.atomic import read_small
from chopper_core.util.compression import COMPRESSED, has_ending
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import distinct, places_by

GROUP_FILE: Final = "comm_group.json"
"""The members of each process group but the world, as ASTRA-sim's option takes them."""
WORLD: Final = 0
"""The number of the group of all ranks, which needs no line in the group file."""
FEEDER_TYPES: Final[Mapping[str, str]] = {
    "is_cpu_op": "bool",
    "num_ops": "int64",
    "tensor_size": "uint64",
    "comm_type": "int64",
    "comm_size": "int64",
    "comm_priority": "int32",
    "comm_src": "int32",
    "comm_dst": "int32",
    "comm_tag": "int32",
    "pg_name": "string",
    "involved_dim": "bool_list",
}
"""The type that the classic feeder reads an attribute with; of another type it reads 0."""
_OF_ALL: Final = ("is_cpu_op", "num_ops", "tensor_size")
"""Those that are read of any node; the others belong to communication."""
SIMULATED_TYPES: Final = (
    CommType.ALL_REDUCE,
    CommType.ALL_GATHER,
    CommType.REDUCE_SCATTER,
    CommType.ALL_TO_ALL,
    CommType.BROADCAST,
)
"""The collectives that ASTRA-sim has."""
_NAME: Final = re.compile(rf"(?P<prefix>.+)\.(?P<rank>\d+)\.(?:et{COMPRESSED}|json)$")
_GROUP: Final = re.compile(r"\s*[+-]?\d+", re.ASCII)
"""What ASTRA-sim takes as the number of a process group, whatever comes behind it."""
_GROUPS: Final = range(1, 1 << 31)
_SPLITS: Final = 4
"""`preferred-dataset-splits` in ASTRA-sim's examples: an all-gather of less bytes never ends."""
FEW_BYTES: Final = 64
"""No system configuration has more splits."""
_MAX_SHOWN: Final = 5
"""Violations of one rule that are spelled out for a file."""
Step = tuple[str, ...]
"""A collective: its type, and its size where that is known and must be the same on all members."""

_SAME_SIZE: Final = (CommType.ALL_REDUCE, CommType.ALL_GATHER, CommType.REDUCE_SCATTER)
"""Collectives that move as many bytes on every member of a job."""
_MATCHED: Final = (*_SAME_SIZE, CommType.ALL_TO_ALL)
"""Those of which ASTRA-sim matches the messages of its members by their sizes."""
_MISSING: Final[Step] = ("missing",)
_UNENDING: Final = tuple(kind.name.lower() for kind in _MATCHED)
"""Those that ASTRA-sim never ends in a group of one rank."""
_TYPES: Final = {
    **{kind.name.lower(): kind for kind in CommType},
    # Exchanges of mixtures of experts.
    "dispatch": CommType.ALL_TO_ALL,
    "combine": CommType.ALL_TO_ALL,
}
"""Operation of a communication kernel → its type in the schema."""


class _File(Struct):
    """The findings of one file, and what the files are compared by."""

    path: Path
    rank: int | None
    nodes: int = 0
    skipped: int = 0
    """Nodes that are INVALID, which ASTRA-sim skips."""
    wrong: dict[str, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    sequences: dict[int, list[Step]] = field(default_factory=dict)
    """Process group → its collectives in the order of the file."""
    messages: dict[tuple[int, ...], list[Step]] = field(default_factory=dict)
    """Sender, receiver, tag and whether it sends → its messages in the order of the file."""
    unknown: set[int] = field(default_factory=set)
    """Numbers of fields that the schema known here lacks."""
    smallest: int = FEW_BYTES
    """The bytes of its smallest all-gather, if that has less."""
    walk: list[WalkedNode] = field(default_factory=list)
    """Its nodes in order, as long as all of them keep the rules."""

    def add(self, rule: str, sentence: str) -> None:
        self.counts[rule] += 1
        if self.counts[rule] <= _MAX_SHOWN:
            self.wrong.setdefault(rule, []).append(sentence)

    def sentences(self) -> Iterator[str]:
        for rule, found in self.wrong.items():
            yield from (f"{self.path.name}: {sentence}" for sentence in found)
            if (more := self.counts[rule] - len(found)) > 0:
                yield f"{self.path.name}: {more:,} more like this: {rule}"


class LintReport(Struct, frozen=True):
    """The result for all files of a trace."""

    files: int
    nodes: int
    count: int
    """Violations; a file's beyond the first few of a rule share a sentence."""
    violations: Sequence[str]
    notes: Sequence[str]


def lint(paths: Sequence[Path]) -> LintReport:
    """Check the `.et` files at the paths, all of one trace, else those of the feeder's JSON.

    Raises DataError if there are none: a store has none.
    """
    at = [path for _, path in files_at(paths, [])]
    found = [path for path in at if has_ending(path.name, et.SUFFIXES)]
    found = found or [path for path in at if feeder_json.recognise(FileHead(path))]
    if not found:
        for store in filter(is_store, paths):
            read_index(store)  # Says so where another version wrote it.
            raise DataError(
                f"{store} is a store, without Chakra traces (.et), which check reads; write them "
                f"with: chopper export {store} --to chakra -o DIR"
            )
        raise DataError(f"{', '.join(map(str, paths))} holds no .et file.")
    files = [_check_file(path) for path in found]
    violations = [sentence for each in files for sentence in each.sentences()]
    between = [*_check_names(files), *_check_groups(files)]
    if not violations and not between:
        between += _check_end(files)
    count = len(between) + sum(each.counts.total() for each in files)
    nodes = sum(each.nodes for each in files)
    return LintReport(len(files), nodes, count, [*violations, *between], [*_notes(files)])


def _notes(files: Sequence[_File]) -> Iterator[str]:
    for each in files:
        if each.skipped:
            many = number_of(each.skipped, "INVALID node")
            yield f"{each.path.name}: ASTRA-sim skips {many}"
        if each.unknown:
            yield f"{each.path.name}: {unknown_fields(each.unknown)}"
    smallest = min(each.smallest for each in files)
    if smallest < FEW_BYTES:
        yield (
            f"the smallest all-gather has {smallest} B: ASTRA-sim never ends one of less "
            "bytes than preferred-dataset-splits of its system configuration"
        )
    if len(files) < 2:
        return
    free = [file.path.name for file in files if file.walk and not has_fixed_order(file.walk)]
    if free:
        more = f" and {len(free) - 1} more" if len(free) > 1 else ""
        yield (
            f"{free[0]}{more}: dependencies don't fix the order of collectives; ASTRA-sim may stop "
            "at other speeds than those of the trace"
        )


def _check_file(path: Path) -> _File:
    match = _NAME.match(path.name)
    file = _File(path, int(match["rank"]) if match else None)
    first: dict[int, int] = {}
    needs: list[tuple[list[int], list[int]]] = []
    ids: list[int] = []
    is_json = feeder_json.recognise(FileHead(path)) is not None
    try:
        for node in feeder_json.decoded_node(path)[1] if is_json else _checked_nodes(file):
            if node.id in first:
                file.add("unique ids", f"has two nodes with the id {node.id}")
            first.setdefault(node.id, len(ids))
            ids.append(node.id)
            # The feeder reads no control dependencies from JSON.
            needs.append((node.data_deps, [] if is_json else node.ctrl_deps))
            if not is_json and not file.wrong:
                deps = [*dict.fromkeys((*node.data_deps, *node.ctrl_deps))]
                group = _group_of(node)
                file.walk.append(
                    walked(node, deps, file.rank or 0, WORLD if group is None else group)
                )
    except (DataError, OSError) as error:
        reason = str(error).removeprefix(f"{path} ").rstrip(".")
        file.add("readable", reason)
    file.nodes = len(ids)
    if not ids and "readable" not in file.wrong:
        file.add("nodes", "has no nodes")
    _check_graph(file, ids, first, needs)
    if file.wrong:
        file.walk.clear()
    for each in file.walk:
        each.needs = [first[need] for need in each.needs]
    return file


def _checked_nodes(file: _File) -> Iterator[Node]:
    with EtFile(file.path) as nodes:
        if nodes.source.compression:
            file.add("compressed", "is compressed, and FeederV3 reads plain files only")
        if not nodes.metadata.version and not nodes.metadata.attributes:
            file.add("metadata", "starts with empty metadata, where the feeders stop reading")
        file.unknown = nodes.unknown
        for node in nodes:
            _check_node(file, node)
            yield node


def _check_node(file: _File, node: Node) -> None:
    called = f"node {node.id} ({node.name[:40]})"
    for name, kind in FEEDER_TYPES.items():
        attribute = node.attributes.get(name)
        is_read = name in _OF_ALL or node.type == NodeType.COMM_COLL
        is_read |= node.type in PAIRWISE and name != "involved_dim"
        if is_read and attribute is not None and attribute.type != kind:
            file.add(
                "types",
                f"{called} has {name} as {attribute.type or 'nothing'}; it must be {kind}",
            )
    file.skipped += node.type == NodeType.INVALID
    if not NodeType.INVALID <= node.type <= NodeType.COMM_COLL:
        known = f"the schema known here ends at {NodeType.COMM_COLL}"
        file.add("node types", f"{called} has the unknown type {node.type}: {known}")
    if node.type == NodeType.METADATA:
        file.add("metadata nodes", f"{called} is METADATA, at which ASTRA-sim's statistics crash")
    if node.type in MEMORY and node.get("tensor_size") is None:
        file.add("memory", f"{called} loads or stores without a tensor_size")
    if node.type not in COMMUNICATION:
        return
    if node.get("is_cpu_op"):
        file.add("CPU", f"{called} communicates, and is on the CPU (is_cpu_op true)")
        return
    size = node.get("comm_size")
    if size is None:
        file.add("sizes", f"{called} communicates without a comm_size")
    size = size if isinstance(size, int) else None
    if size is not None and (size < 0 or (size == 0 and node.type in PAIRWISE)):
        file.add("sizes", f"{called} has a comm_size of {size:,} B")
    if node.type == NodeType.COMM_COLL:
        _check_collective(file, node, called, size)
    else:
        _check_message(file, node, called, size)


def _check_collective(file: _File, node: Node, called: str, size: int | None) -> None:
    kind, name = node.get("comm_type"), node.get("pg_name")
    if not isinstance(kind, int) or not 0 <= kind <= max(CommType):
        file.add("comm_type", f"{called} is a collective without a valid comm_type")
        return
    if kind not in SIMULATED_TYPES:
        what = CommType(kind).name
        file.add("collectives", f"{called} is a {what}, which ASTRA-sim can't simulate")
    if kind == CommType.ALL_GATHER and size is not None:
        if size < _SPLITS:
            why = f"which ASTRA-sim never ends with its examples' {_SPLITS} dataset splits"
            file.add("sizes", f"{called} is an all-gather of {size} B, {why}")
        file.smallest = min(file.smallest, size)
    group = _group_of(node)
    if group is None:
        file.add("pg_name", f"{called} has the pg_name {name!r}, which is not a decimal number")
    else:
        exact = _step(CommType(kind), size, _MATCHED)
        file.sequences.setdefault(group, []).append(exact)


def _group_of(node: Node) -> int | None:
    """The number of a collective's group; None where ASTRA-sim reads none."""
    name = node.get("pg_name") or str(WORLD)
    match = _GROUP.match(name) if isinstance(name, str) else None
    if match is None or (name != str(WORLD) and int(match[0]) not in _GROUPS):
        return None
    return int(match[0])


def _check_message(file: _File, node: Node, called: str, size: int | None) -> None:
    """A send or receive names its other end and a tag; its own end is the file's rank, if given."""
    is_send = node.type == NodeType.COMM_SEND
    ends = {name: node.get(name) for name in ("comm_src", "comm_dst", "comm_tag")}
    own = "comm_src" if is_send else "comm_dst"
    if ends[own] is None:
        # ASTRA-sim's default too.
        ends[own] = file.rank
    lacking = [name for name, value in ends.items() if not isinstance(value, int)]
    for name in lacking:
        file.add("peers", f"{called} sends or receives without {name}")
    if lacking:
        return
    if file.rank is not None and ends[own] != file.rank:
        verb = "sends" if is_send else "receives"
        file.add("ends", f"{called} {verb} on rank {file.rank} and has the {own} {ends[own]}")
    sequence = file.messages.setdefault((*ends.values(), is_send), [])
    sequence.append(_message(size))


def _check_graph(
    file: _File,
    ids: Sequence[int],
    first: Mapping[int, int],
    needs: Sequence[tuple[list[int], list[int]]],
) -> None:
    """Dependencies lead to nodes of the file, and to no cycle."""
    found: dict[int, list[int]] = {place: [] for place in range(len(ids))}
    for number, kind in enumerate(("data_deps", "ctrl_deps")):
        for place, deps in enumerate(of_kinds[number] for of_kinds in needs):
            found[place] += [first[dep] for dep in deps if dep in first]
            for dep in deps:
                if dep not in first:
                    file.add(
                        f"dangling {kind}",
                        f"node {ids[place]} waits for node {dep}, which the file lacks ({kind})",
                    )
        if cycle := cycle_of(found, ids):
            through = " through ctrl_deps" if number else ""
            file.add("cycles", f"has a cycle{through}: {cycle}")
            return


def _check_names(files: Sequence[_File]) -> Iterator[str]:
    """ASTRA-sim opens PREFIX.0.et to PREFIX.<N-1>.et."""
    unnamed = [file.path.name for file in files if file.rank is None]
    if unnamed:
        yield f"{unnamed[0]} is not named PREFIX.<rank>.et"
        return
    prefixes = sorted({match["prefix"] for file in files if (match := _NAME.match(file.path.name))})
    if len(prefixes) > 1:
        yield f"the files have different prefixes: {', '.join(prefixes[:3])}"
        return
    counts = Counter(file.rank for file in files)
    lost = next((rank for rank in range(len(files)) if rank not in counts), None)
    if len(files) > 1 and lost is not None:
        twice = next((rank for rank, count in counts.items() if count > 1), None)
        yield f"rank {lost} has no file" if twice is None else f"rank {twice} has two files"


def _check_groups(files: Sequence[_File]) -> Iterator[str]:
    """All members of a group have the same collectives in the same order."""
    listed, problem = _group_file(files[0].path.parent)
    if problem:
        yield problem
    by_rank = {file.rank: file for file in files if file.rank is not None}
    is_alone = len(by_rank) < 2
    for group in sorted({each for file in files for each in file.sequences}):
        using = [rank for rank, file in by_rank.items() if group in file.sequences]
        members = sorted(by_rank) if group == WORLD else listed.get(group, sorted(using))
        if group != WORLD and group not in listed and not problem:
            yield f"process group {group} is not in {GROUP_FILE}"
        for rank in using:
            if rank not in members:
                yield f"rank {rank} uses process group {group}, but is not a member of it"
        if len(set(members)) < len(members):
            yield f"process group {group} lists a rank twice in {GROUP_FILE}"
        steps = (step[0] for rank in using for step in by_rank[rank].sequences[group])
        unending = next((step for step in steps if step in _UNENDING), None)
        # A single file of another rank than 0 is part of a trace.
        is_part = group == WORLD and using != [0]
        if len(members) == 1 and unending is not None and not is_part:
            who = "the trace" if group == WORLD else f"process group {group}"
            yield f"{who} has one rank: ASTRA-sim never ends its {unending}"
        for rank in members:
            if rank not in by_rank and not is_alone:
                yield f"rank {rank} of process group {group} has no file"
        there = [rank for rank in members if rank in by_rank]
        wrong = _first_difference(there, [by_rank[rank].sequences.get(group, []) for rank in there])
        if wrong:
            yield f"process group {group}: {wrong}"
    if not is_alone:
        yield from _check_messages(files, by_rank)


def _check_end(files: Sequence[_File]) -> Iterator[str]:
    """Ranks that never finish, though all files keep the rules: they wait for each other."""
    ranks = {file.rank: file.walk for file in files if file.rank is not None and file.walk}
    if len(ranks) == len(files) > 1:
        listed, _ = _group_file(files[0].path.parent)
        if found := stops(ranks, {**listed, WORLD: sorted(ranks)}):
            yield found


def _check_messages(files: Sequence[_File], by_rank: Mapping[int, _File]) -> Iterator[str]:
    """Both ends of a pair of ranks have the same messages in the same order."""
    messages = {each[:3] for file in files for each in file.messages}
    for sender, receiver, tag in sorted(messages):
        lost = [rank for rank in (sender, receiver) if rank not in by_rank]
        if lost:
            yield f"rank {lost[0]}, which messages with tag {tag} name, has no file"
            continue
        sides = [
            by_rank[rank].messages.get((sender, receiver, tag, is_send), [])
            for rank, is_send in ((sender, True), (receiver, False))
        ]
        if wrong := _first_difference((sender, receiver), sides, "message"):
            yield f"messages from rank {sender} to {receiver} with tag {tag}: {wrong}"


def _group_file(folder: Path) -> tuple[dict[int, list[int]], str]:
    path = folder / GROUP_FILE
    try:
        found = json_decode(read_small(path), type=dict[int, list[int]]) if path.exists() else {}
    except (OSError, MsgspecError, RecursionError):
        found = {0: []}
    if min(found, default=1) < 1:
        return {}, f"{GROUP_FILE} is not a JSON object of group numbers and lists of ranks"
    return found, ""


def _step(kind: CommType, size: int | None, matched: Sequence[CommType] = _SAME_SIZE) -> Step:
    """A collective for comparison with those of other members, by size where kinds need it."""
    known = size is not None and kind in matched
    return (kind.name.lower(), f"{size:,} B") if known else (kind.name.lower(),)


def _message(size: int | None) -> Step:
    """A send or receive for comparison with its other end."""
    return ("a message",) if size is None else ("a message", f"{size:,} B")


def _first_difference(
    ranks: Sequence[int], sequences: Sequence[Sequence[Step]], what: str = "collective"
) -> str:
    """The first collective that isn't the same on all ranks, in a sentence; '' without any."""
    for place in range(max(map(len, sequences), default=0)):
        steps = [own[place] if place < len(own) else _MISSING for own in sequences]
        first_of: dict[Step, int] = {}
        for at, step in enumerate(steps):
            first_of.setdefault(step, at)
        for at, other in enumerate(first_of):
            one = next((one for one in islice(first_of, at) if _differ(one, other)), None)
            if one is not None:
                return (
                    f"{what} {place + 1} is {' of '.join(one)} on rank {ranks[first_of[one]]} and "
                    f"{' of '.join(other)} on rank {ranks[first_of[other]]}"
                )
    return ""


def _differ(one: Step, other: Step) -> bool:
    if _MISSING in (one, other):
        return one != other
    return any(a != b for a, b in zip(one, other, strict=False))


class Communicator(Struct, frozen=True):
    """The GPUs that a process group connects, and the kernels of each in the order of start."""

    number: int
    code: int
    """The group's code among the names of `split_groups`; -1 for collectives without a group."""
    label: str
    gpus: tuple[int, ...]
    size: int
    """Its ranks, 0 where that isn't known; more than `gpus` where some are not in the run."""
    rows: tuple[Index, ...]
    mismatch: str
    """The first difference between its members, as a sentence; '' if there is none."""


def comm_type(table: KernelTable, row: int) -> CommType | None:
    code = int(table.operation[row])
    if code == NO_LABEL:
        return None
    return _TYPES.get(table.operations[code].removesuffix(RECOMPUTE_SUFFIX))


def communicators(run: Run, rows: Index) -> list[Communicator]:
    table = split_groups(run)
    comm = rows[table.kind[rows] == Kind.COMM]
    typed = np.array([comm_type(table, row) is not None for row in comm.tolist()], np.bool_)
    comm = comm[typed] if len(comm) else comm
    comm = comm[np.lexsort((table.stream[comm], table.start_ns[comm], table.gpu[comm]))]
    everyone = tuple(gpu.index for gpu in run.gpus)
    sizes, shared = known_group_sizes(run, table.group[comm], table.gpu[comm])
    named = _members(run)
    found: list[Communicator] = []
    for code, at in places_by(table.group[comm]).items():
        own = comm[at]
        label = table.names[code] if code >= 0 else ""
        gpus = named.get(label) or tuple(distinct(table.gpu[own]).tolist())
        gpus = everyone if code < 0 else gpus
        by_gpu = places_by(table.gpu[own])
        of_gpu = tuple(own[by_gpu.get(gpu, np.empty(0, np.intp))] for gpu in gpus)
        size = sizes.get(code, 0)
        if code in shared:
            wrong = "the trace gives several groups this name, so its members are not known"
        else:
            wrong = _first_difference(gpus, [_sequence(table, rows) for rows in of_gpu])
            if not wrong and len(gpus) < size <= len(run.gpus) >= run.world:
                wrong = f"only {len(gpus)} of its {size} ranks have collectives"
        found.append(Communicator(WORLD, code, label, gpus, size, of_gpu, wrong))
    # Of several that connect all ranks, one is the world and the others get a number.
    world = next((one for one in found if one.gpus == everyone), None)
    others = [one for one in found if one is not world]
    numbered = [replace(one, number=number) for number, one in enumerate(others, WORLD + 1)]
    return [*([] if world is None else [world]), *numbered]


def unmatched(table: KernelTable, found: Mapping[int, Transfer]) -> dict[tuple[int, int], str]:
    """Pairs of GPUs whose sends and receives don't match, and the first difference of each."""
    wrong = {}
    for (sender, receiver, tag), sides in by_ends(table, found).items():
        sizes = [[found[row].bytes for row in own] for own in sides]
        sequences = [[_message(size if size >= 0 else None) for size in own] for own in sizes]
        if difference := _first_difference((sender, receiver), sequences, "message"):
            wrong[sender, receiver] = f"with tag {tag}, {difference}"
    return wrong


def _members(run: Run) -> dict[str, tuple[int, ...]]:
    """The GPUs of the run in each process group whose ranks the traces list, by its label."""
    return {
        group_label(
            Collective(
                group_name=group.name,
                group_description=group.description,
                group_size=len(group.ranks),
            )
        ): tuple(gpu.index for gpu in run.gpus if gpu.rank in group.ranks)
        for group in run.groups
    }


def _sequence(table: KernelTable, rows: Index) -> list[Step]:
    known = ((comm_type(table, row), int(table.bytes[row])) for row in rows.tolist())
    return [_step(kind, size if size >= 0 else None) for kind, size in known if kind is not None]
