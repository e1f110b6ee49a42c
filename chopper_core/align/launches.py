"""Launches of kernels: what identifies them in any tool, and the alignment of two sequences.

That is the kernel's name, its size, named range and ids. An alignment is a longest common
subsequence, with its ambiguities.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.host import Host
from chopper_core.model.column_names import BLOCK, CORRELATION, GRID
from chopper_core.model.table import RECOMPUTE_SUFFIX, KernelTable, Rule
from chopper_core.sources.dispatches import DispatchRun
from chopper_core.util.arrays import Float64, Index, Int32, Int64, Mask
from chopper_core.util.grouping import distinct, grouped_by, numbered_rows, ranked
from chopper_core.util.patterns import late

UNMATCHED: Final = -1
_EARLIEST, _EARLY, _LATE = range(3)
UNKNOWN: Final = -1
"""A trait that can't be compared: it matches any."""
_BLOCKS: Final = 2048
"""An upper bound of the work-items in a workgroup."""
_LARGEST_GRID: Final = 2**42
_COMPARABLE: Final = 0.5
"""Share of a kernel's launches that must have a trait of the other side to compare it."""
_SAME_PROCESS: Final = 0.9
"""Share of launches with equal correlation ids that must be of the same kernel."""
_ENOUGH_NAMES: Final = 0.9
"""Share of dispatches with names in the trace at which a comparison is accepted."""
_MIN_PREFIX: Final = 6
"""Shorter names are prefixes of too many others."""
_IN_ITEMS: Final = late(r"ExtModuleLaunch")
_CLONE: Final = late(r"(?:\s{0,9}\[clone[^\]]{0,999}\]|\s{0,9}\(\.kd\)|\.kd)+$")
_QUALIFIERS: Final = late(r"^(?:void|static|__global__)\s+")


def launch_sizes(host: Host) -> dict[str, Float64]:
    """The workgroups of each launch, and the work-items of each workgroup, where one is known.

    Extended launches of a module count their grid in work-items, which fill whole workgroups.
    """
    shapes, of = host.trace.launch_shapes, host.trace.activities.launch_shape
    grid, block = (
        np.array([size if size > 0 else np.nan for size in sizes], np.float64)[of]
        for sizes in ([each.grid for each in shapes], [each.block for each in shapes])
    )
    if not np.isfinite(grid).any():
        return {}
    launch = host.links.launch
    called = np.flatnonzero(launch >= 0)
    extended = called[host.calls(_IN_ITEMS)[launch[called]]]
    filled = grid[extended] / block[extended]
    if not (filled % 1).any():
        grid[extended] = filled
    return {GRID: grid, BLOCK: block}


class Dispatched(Struct, frozen=True):
    """The dispatches of one GPU in order, with what identifies their kernels."""

    names: Sequence[str]
    name: Int32
    """Code of the kernel's name in `names`."""
    items: Int64
    """Work-items of the grid, or UNKNOWN."""
    workgroup: Int64
    region: Int32
    """Code of the innermost roctx range in `names`, or UNKNOWN."""
    correlation: Int64
    """The correlation id that the trace shares, or UNKNOWN."""

    def __len__(self) -> int:
        return len(self.name)

    @classmethod
    def of(cls, run: DispatchRun, rows: Index, process: int = -1) -> Dispatched:
        """Dispatches of a run; correlation ids count only for the trace's own process."""

        def size(sizes: Int32) -> Int64:
            whole = np.maximum(sizes.astype(np.int64), 1).prod(axis=1)
            return np.where((sizes > 0).any(axis=1), whole, UNKNOWN)

        found = run.dispatches
        is_own = (found.process[rows] == process) & (process >= 0)
        return cls(
            run.names,
            found.name[rows],
            size(found.grid[rows]),
            size(found.workgroup[rows]),
            found.region[rows],
            np.where(is_own & (found.correlation[rows] > 0), found.correlation[rows], UNKNOWN),
        )


class Comparison(Struct, frozen=True):
    """The launches of a trace next to the dispatches of a counter run."""

    table: KernelTable
    sequence: Index
    """Rows of the table in the order of launch."""
    dispatched: Dispatched
    trace_code: Int64
    """Codes of the names, equal on both sides where they mean the same kernel."""
    dispatch_code: Int64

    def sides(self) -> tuple[Launched, Launched]:
        """Both sides with the traits that can be compared: size and named range."""
        sizes, regions = self._sizes(), self._regions()
        return (
            Launched(self.trace_code, (sizes[0], regions[0])),
            Launched(self.dispatch_code, (sizes[1], regions[1])),
        )

    def same_launches(self) -> tuple[Index, Index]:
        """Positions of kernels and dispatches with the same correlation id in one process.

        Empty where the ids pair different kernels: then the process is another one.
        """
        nothing = np.empty(0, np.intp), np.empty(0, np.intp)
        numbers = self.table.measured.get(CORRELATION)
        theirs = self.dispatched.correlation
        if numbers is None:
            return nothing
        known = np.isfinite(numbers[self.sequence])
        ours = np.where(known, numbers[self.sequence], UNKNOWN).astype(np.int64)
        here, there = _once(ours), _once(theirs)
        _, at, other = np.intersect1d(
            ours[here], theirs[there], assume_unique=True, return_indices=True
        )
        here, there = here[at], there[other]
        agree = self.trace_code[here] == self.dispatch_code[there]
        if not len(here) or agree.mean() < _SAME_PROCESS:
            return nothing
        return here[agree], there[agree]

    def _regions(self) -> tuple[Int64, Int64]:
        """The named range around each launch, where ranges of the trace are roctx ranges too.

        On the trace's side it is the operation that an annotation names, for kernels whose
        dispatches lie in ranges of that name.
        """
        table, sequence = self.table, self.sequence
        region = self.dispatched.region.astype(np.int64)
        unknown = np.full(len(sequence), UNKNOWN, np.int64)
        if (region < 0).all():
            return unknown, region
        names = self.dispatched.names
        codes = {names[code]: code for code in distinct(region[region >= 0]).tolist()}
        of_operation = np.array(
            [codes.get(name.removesuffix(RECOMPUTE_SUFFIX), UNKNOWN) for name in table.operations]
            + [UNKNOWN],
            np.int64,
        )
        operation = table.operation[sequence]
        known = (operation >= 0) & (table.operation_rule[sequence] == Rule.ANNOTATION)
        of_trace = of_operation[operation]
        share = self._share_found(of_trace, known, region)
        known &= (of_trace != UNKNOWN) & (share >= _COMPARABLE)
        return np.where(known, of_trace, UNKNOWN), region

    def _sizes(self) -> tuple[Int64, Int64]:
        """Size codes of both sides, equal where grid and workgroup are, or UNKNOWN.

        A trace counts a grid in workgroups, for some launches in work-items; the profiler always
        counts work-items. Each kernel is decided on its own; where neither matches the other
        side, the two executions ran other sizes, and only names are compared.
        """
        sizes = [self.table.measured.get(size) for size in (GRID, BLOCK)]
        items, workgroup = self.dispatched.items, self.dispatched.workgroup
        best = np.full(len(self.sequence), UNKNOWN, np.int64)
        if sizes[0] is None or sizes[1] is None or (items < 0).all():
            return best, np.full(len(items), UNKNOWN, np.int64)
        groups, own = sizes[0][self.sequence], sizes[1][self.sequence]
        known = (groups < _LARGEST_GRID) & (own < _BLOCKS)
        grid, block = (np.where(known, each, 0).astype(np.int64) for each in (groups, own))
        has_workgroup = bool((workgroup > 0).any())
        of_dispatch = np.where(
            items > 0,
            items * _BLOCKS + (np.minimum(workgroup, _BLOCKS - 1) if has_workgroup else 0),
            UNKNOWN,
        )
        best_share = np.zeros(len(best))
        for in_items in (grid * block, grid):
            of_trace = in_items * _BLOCKS + (block if has_workgroup else 0)
            share = self._share_found(of_trace, known, of_dispatch)
            better = known & (share >= _COMPARABLE) & (share > best_share)
            best[better], best_share[better] = of_trace[better], share[better]
        return best, of_dispatch

    def _share_found(self, of_trace: Int64, known: Mask, of_dispatch: Int64) -> Float64:
        """For each launch the share of its kernel's launches whose trait some dispatch has."""
        code, count = self.trace_code, len(self.trace_code)
        number = numbered_rows(
            (
                np.concatenate([code, self.dispatch_code]),
                np.concatenate([of_trace, of_dispatch]),
            )
        )
        is_found = known & np.isin(number[:count], number[count:])
        size = int(code.max(initial=0)) + 1
        whole = np.bincount(code[known], minlength=size)
        found = np.bincount(code[is_found], minlength=size)
        share: Float64 = (found / np.maximum(whole, 1))[code]
        return share


def _once(values: Int64) -> Index:
    """Positions of known values that occur once: a graph's launch has several kernels."""
    positions = np.flatnonzero(values != UNKNOWN)
    _, place = ranked(values[positions])
    once: Index = positions[np.bincount(place)[place] == 1]
    return once


def plain_name(name: str) -> str:
    """A kernel's name without tool suffixes and return type."""
    return _QUALIFIERS.sub("", _CLONE.sub("", name.strip()))


def base_name(name: str) -> str:
    """The last part of a kernel's name before its template and call parameters."""
    name = re.sub(r"\(anonymous namespace\)::", "", plain_name(name))
    return re.split(r"[<(]", name, maxsplit=1)[0].rsplit("::", 1)[-1]


def common_codes(
    trace_names: Sequence[str],
    trace_name: Int32,
    dispatch_names: Sequence[str],
    dispatch_name: Int32,
) -> tuple[Int64, Int64, str]:
    """Codes of both sides, equal where the names mean the same kernel, and the comparison."""
    trace_used, dispatch_used = distinct(trace_name), distinct(dispatch_name)
    sides = (trace_names, trace_used), (dispatch_names, dispatch_used)
    cuts = sorted({plain_name(dispatch_names[code]) for code in dispatch_used}, key=len)
    cuts = [cut for cut in cuts if len(cut) >= _MIN_PREFIX]

    def shortened(name: str) -> str:
        plain = plain_name(name)
        return next((cut for cut in cuts if plain.startswith(cut)), plain)

    ways = (("exact", plain_name), ("prefix", shortened), ("base name", base_name))
    compared = []
    for title, way in ways:
        codes: dict[str, int] = {}
        found = []
        for names, used in sides:
            code_of = np.zeros(len(names), np.int64)
            code_of[used] = [codes.setdefault(way(names[code]), len(codes)) for code in used]
            found.append(code_of)
        in_trace = np.isin(found[1], found[0][trace_used])[dispatch_name]
        share = in_trace.sum() / max(len(dispatch_name), 1)
        compared.append((share, found[0][trace_name], found[1][dispatch_name], title))
        if share >= _ENOUGH_NAMES:
            break
    _, trace_codes, dispatch_codes, title = max(compared, key=lambda way: way[0])
    return trace_codes, dispatch_codes, title


class Alignment(Struct, frozen=True):
    """The partner in the second sequence of each element of the first one."""

    partner: Index
    """Position in the second sequence, or UNMATCHED."""
    ambiguous: Mask
    """Where an equally long alignment pairs the element differently, or not at all."""


class Launched(Struct, frozen=True):
    """Kernels in launch order."""

    code: Int64
    """Equal for the same kernel."""
    traits: tuple[Int64, ...] = ()
    """Further codes that distinguish kernels, UNKNOWN where they can't be compared; both sides of
    an alignment have the same traits."""

    def __len__(self) -> int:
        return len(self.code)

    def take(self, rows: Index | slice | Mask) -> Launched:
        return Launched(self.code[rows], tuple(trait[rows] for trait in self.traits))

    def may_be_at(self, other: Launched, position: int) -> Mask:
        same: Mask = self.code == other.code[position]
        for ours, theirs in zip(self.traits, other.traits, strict=True):
            if theirs[position] != UNKNOWN:
                same &= (ours == theirs[position]) | (ours == UNKNOWN)
        return same

    def may_be(self, other: Launched) -> Mask:
        same: Mask = self.code == other.code
        for ours, theirs in zip(self.traits, other.traits, strict=True):
            same &= (ours == theirs) | (ours == UNKNOWN) | (theirs == UNKNOWN)
        return same


def align(first: Launched, second: Launched) -> Alignment:
    """Pair kernels that may be the same, in order, as many as possible.

    Of several longest alignments the one with the earliest partners wins. Takes an eighth of a byte
    of memory per pair of elements, each of which costs a bit's operation.
    """
    if len(first) == len(second) and first.may_be(second).all():
        return Alignment(np.arange(len(first)), np.zeros(len(first), np.bool_))
    partner = np.full(len(first), UNMATCHED, np.intp)
    ambiguous = np.zeros(len(first), np.bool_)
    if not len(first) or not len(second):
        return Alignment(partner, ambiguous)
    may_be = _may_be_bits(first, second)
    partner, lowest, highest = _longest(may_be, _rests(may_be, len(second)), len(second))
    # All longest alignments lie between the two extremes: a pair of both is in each of them.
    return Alignment(partner, (partner != UNMATCHED) & ((lowest != partner) | (highest != partner)))


def _longest(may_be: Sequence[int], rests: Sequence[int], width: int) -> tuple[Index, Index, Index]:
    """Three longest alignments: with the earliest partners, and both extremes of all of them.

    One extreme skips elements of the first sequence as early as it can, one as late as it can.
    """
    found = np.full((3, len(may_be)), UNMATCHED, np.intp)
    ends, left = [width] * 3, [rests[0].bit_count()] * 3
    for position, (may, here, after) in enumerate(zip(may_be, rests, rests[1:], strict=False)):
        for way, end in enumerate(ends):
            below = (1 << end) - 1
            hit = ((here if way == _LATE else may) & below).bit_length()
            if not hit:
                continue
            if way == _EARLIEST:  # pairing this element must not cost a pair later on
                is_pair = (after & ((1 << hit - 1) - 1)).bit_count() + 1 == left[way]
            elif way == _EARLY:
                is_pair = (after & below).bit_count() < left[way]
            else:
                ends[way] = hit
                is_pair = bool(may >> hit - 1 & 1)
            if is_pair:
                found[way, position] = width - hit
                ends[way], left[way] = hit - 1, left[way] - 1
    return found[0], found[1], found[2]


def _may_be_bits(first: Launched, second: Launched) -> list[int]:
    """For each element of the first sequence a bit for each of the second one that it may be.

    The lowest bit is that of the last element.
    """
    mirrored = second.take(slice(None, None, -1))
    known: dict[tuple[int, ...], int] = {}
    found = []
    for position, own in enumerate(_elements(first)):
        if own not in known:
            bits = np.packbits(mirrored.may_be_at(first, position), bitorder="little")
            known[own] = int.from_bytes(bits.tobytes(), "little")
        found.append(known[own])
    return found


def _rests(may_be: Sequence[int], width: int) -> list[int]:
    """Lengths of the longest alignments of the suffixes of both sequences.

    There is a number for each suffix of the first one. Its bits are the steps by which the length
    grows with the suffix of the second one (Hyyrö, Bit-parallel LCS-length computation, 2004).
    """
    whole = (1 << width) - 1
    flat, found = whole, [0]
    for may in reversed(may_be):
        same = flat & may
        flat = ((flat + same) | (flat - same)) & whole
        found.append(flat ^ whole)
    return found[::-1]


def _elements(kernels: Launched) -> list[tuple[int, ...]]:
    each = (kernels.code, *kernels.traits)
    return list(zip(*(values.tolist() for values in each), strict=True))


def with_moved(found: Alignment, first: Launched, second: Launched) -> Alignment:
    """Add pairs of kernels that changed places: equal kernels that share a known trait.

    Such a pair counts, in order or not, between the same two certain pairs, if neither kernel has
    another candidate there.
    """
    anchor = (found.partner != UNMATCHED) & ~found.ambiguous
    is_anchor_there = np.zeros(len(second), np.bool_)
    is_anchor_there[found.partner[anchor]] = True
    theirs = _by_gap(second, is_anchor_there)
    partner, ambiguous = found.partner.copy(), found.ambiguous.copy()
    for gap, here in _by_gap(first, anchor).items():
        there = theirs.get(gap)
        if there is None:
            continue
        ours, others = first.take(here), second.take(there)
        may = np.stack([others.may_be_at(ours, position) for position in range(len(here))])
        alone = may.sum(axis=0) == 1
        for row in np.flatnonzero(may.sum(axis=1) == 1):
            column = int(np.argmax(may[row]))
            traits = zip(ours.traits, others.traits, strict=True)
            shares = any(own[row] == other[column] != UNKNOWN for own, other in traits)
            if alone[column] and shares:
                partner[here[row]], ambiguous[here[row]] = there[column], False
    return Alignment(partner, ambiguous)


def _by_gap(kernels: Launched, anchor: Mask) -> dict[tuple[int, int], Index]:
    """Kernels that are not anchors, by (number of anchors before, code)."""
    gap = np.cumsum(anchor)
    found = grouped_by(
        np.flatnonzero(~anchor).tolist(), lambda at: (int(gap[at]), int(kernels.code[at]))
    )
    return {place: np.array(positions, np.intp) for place, positions in found.items()}
