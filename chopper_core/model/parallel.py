"""Parallelism: the coordinates of ranks along tp, cp, ep, dp and pp, and where they come from.

A layout names sizes and an order of the dimensions, the fastest first; Megatron's order is
`tp-cp-ep-dp-pp`. Experts share the data-parallel ranks: ep = dp mod EP. Where the process groups of
a run are named, coordinates are those that reproduce every group.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from math import prod
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import united
from chopper_core.util.patterns import late

DIMENSIONS: Final[tuple[str, ...]] = ("pp", "dp", "ep", "cp", "tp")
"""The dimensions as people nest them, the slowest of Megatron's order first."""
MEGATRON_ORDER: Final[tuple[str, ...]] = ("tp", "cp", "dp", "pp")
"""Megatron's order of the ranks, the fastest first; ep counts within dp."""
SHARING: Final = ("tp", "cp", "pp")
"""The dimensions whose ranks share the tokens of one data-parallel replica."""
TITLES: Final[Mapping[str, str]] = {
    "pp": "pipeline stage",
    "dp": "data-parallel replica",
    "ep": "expert-parallel rank",
    "cp": "context-parallel rank",
    "tp": "tensor-parallel rank",
}
FROM_USER: Final = "--parallel"
FROM_GROUPS: Final = "process groups"
FROM_SETTINGS: Final = "the manifest or the job's configuration"
FROM_NAMES: Final = "the names of the files"
FROM_DIRECTORY: Final = "the settings in the directory's name"
EXAMPLE: Final = "tp=2,pp=16"
_MAX_DIGITS: Final = 10

_COORDINATE: Final = late(r"(?<![a-z])(tp|pp|dp|ep|cp)[-_]?(\d{1,6})(?![a-z0-9])", re.IGNORECASE)
_SEPARATORS: Final = late(r"[-,.:>]+")
_ALIASES: Final[Mapping[str, str]] = {"fsdp": "dp", "dp_shard": "dp", "sp": "cp"}
_MESH: Final = late(r"mesh_([a-z_]+)")
_WORDED: Final = late(
    r"(?:intra_|inter_)?(?:partial_)?(?:expert_(?=data|tensor))?"
    r"(tensor|pipeline|data|context|expert|sequence)(?:_model)?_parallel"
    r"(?:_group)?(_with_cp|_group_with_cp)?(?:_gloo)?"
)
_SHORT: Final = late(r"(tp|pp|dp|ep|cp|fsdp|dp_shard|dp_replicate)(?:[_:\-]?\d+)?(?:_group)?")
_PARTIAL: Final = late(r"with_cp|partial|expert_(?:data|tensor)")
_WORDS: Final[Mapping[str, str]] = {
    "tensor": "tp",
    "pipeline": "pp",
    "data": "dp",
    "context": "cp",
    "expert": "ep",
    "sequence": "cp",
}


class ProcessGroup(Struct, frozen=True):
    """Ranks that communicate with each other, in the order of the group."""

    name: str
    description: str
    ranks: tuple[int, ...]

    @property
    def kind(self) -> str:
        """Its dimension, by its description or name; '' if neither has one."""
        return kind_of(self.description) or kind_of(self.name)


class RankLayout(Struct, frozen=True):
    """Sizes of the dimensions, and the order in which ranks count along them."""

    sizes: Mapping[str, int]
    """Dimension → size; dp may be missing, then it follows from the number of ranks."""
    order: tuple[str, ...] = MEGATRON_ORDER
    """The dimensions but ep, the fastest first."""

    @property
    def text(self) -> str:
        sizes = ",".join(f"{name}={self.sizes[name]}" for name in DIMENSIONS if name in self.sizes)
        order = "" if self.order == MEGATRON_ORDER else f",order={'-'.join(self.order)}"
        return sizes + order

    def of_world(self, world: int, *, is_stated: bool = False) -> RankLayout:
        """The layout with every size, for a number of ranks; raises UsageError if it can't be.

        Unless their number is stated, there may be more ranks than were seen.
        """
        sizes = {name: self.sizes.get(name, 1) for name in MEGATRON_ORDER}
        if "dp" not in self.sizes:
            others = prod(size for name, size in sizes.items() if name != "dp")
            sizes["dp"] = max(world // others, 1)
        ranks = " × ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "1"
        if prod(sizes.values()) < world or (is_stated and prod(sizes.values()) > world):
            raise UsageError(f"{self.text}: {ranks} doesn't make up the run's {world} ranks")
        sizes["ep"] = self.sizes.get("ep", 1)
        if sizes["dp"] % sizes["ep"]:
            raise UsageError(f"{self.text}: ep={sizes['ep']} doesn't divide dp={sizes['dp']}")
        return replace(self, sizes=sizes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """The coordinates of a rank of a complete layout (see `of_world`)."""
        found, left = {}, rank
        for name in self.order:
            found[name] = left % self.sizes[name]
            left //= self.sizes[name]
        return {**found, "ep": found["dp"] % self.sizes["ep"]}


class Parallel(Struct, frozen=True):
    """The coordinates of a run's ranks."""

    sizes: Mapping[str, int]
    """Dimension → size, of those with more than one rank, in the order of `DIMENSIONS`."""
    coordinates: Mapping[int, Mapping[str, int]]
    """Rank → its coordinate along each dimension of `sizes`; absent where it is unknown."""
    origin: str
    """Where they come from: `--parallel`, the process groups, the file with the settings, or the
    names of the traces."""
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return " × ".join(f"{name} {self.sizes[name]}" for name in reversed(tuple(self.sizes)))


def kind_of(text: str) -> str:
    """The dimension in the name or description of a process group; '' if none.

    Megatron's (`TENSOR_MODEL_PARALLEL_GROUP`), PyTorch's device meshes (`mesh_dp_shard`) and short
    names (`tp`, `pp:0`) are known. A group over several dimensions, such as `MODEL_PARALLEL_GROUP`,
    has none; that of data-parallel ranks with their context-parallel ones counts as dp.
    """
    lowered = text.strip().casefold()
    if worded := _WORDED.fullmatch(lowered):
        return _WORDS[worded[1]]
    mesh = _MESH.fullmatch(lowered)
    short = _SHORT.fullmatch(mesh[1] if mesh else lowered)
    if short is None:
        return ""
    return "dp" if short[1].startswith(("dp_", "fsdp")) else short[1]


def parse_layout(text: str) -> RankLayout:
    """Parse `tp=2,pp=16[,order=tp-dp-pp]`; raises UsageError."""
    sizes: dict[str, int] = {}
    order = MEGATRON_ORDER
    for item in text.split(",") if text else ():
        name, equals, value = (part.strip().casefold() for part in item.partition("="))
        name = _ALIASES.get(name, name)
        if name == "order":
            order = _order(value, text)
        elif equals and (size := _size(name, value)):
            sizes[name] = size
        else:
            raise UsageError(
                f"{text!r} is not a layout such as {EXAMPLE}: {item!r} is not one of "
                f"{', '.join(DIMENSIONS)} with a size, nor order="
            )
    if not sizes:
        raise UsageError(f"{text!r} is not a layout such as {EXAMPLE}")
    return RankLayout(sizes, order)


def layout_text(text: str) -> str:
    """The layout in its canonical spelling, '' for none; raises UsageError."""
    return parse_layout(text).text if text else ""


def _size(name: str, text: str) -> int:
    """The size of a dimension; 0 where the name is none or the text no size."""
    is_number = text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS
    return int(text) if name in DIMENSIONS and is_number else 0


def _order(text: str, whole: str) -> tuple[str, ...]:
    names = [_ALIASES.get(name, name) for name in _SEPARATORS.split(text) if name]
    names = [name for name in names if name != "ep"]
    if not names or len(set(names)) != len(names) or not set(names) <= set(MEGATRON_ORDER):
        raise UsageError(
            f"{whole!r}: order= takes dimensions, the fastest first, such as tp-cp-ep-dp-pp"
        )
    return (*names, *(name for name in MEGATRON_ORDER if name not in names))


def layout_of_settings(settings: Mapping[str, object]) -> RankLayout | None:
    """The layout among the settings of a job (`tp`, `tensor_model_parallel_size` …), if any."""
    sizes: dict[str, int] = {}
    for key, value in settings.items():
        name = key.strip().casefold().replace("-", "_").removesuffix("_size")
        name = kind_of(name.removesuffix("_world")) or _ALIASES.get(name, name)
        if size := _size(name, str(value).strip()):
            sizes[name] = size
    return RankLayout(sizes) if sizes else None


def parallel_of_layout(
    layout: RankLayout,
    ranks: Iterable[int],
    world: int,
    origin: str = FROM_USER,
    *,
    is_stated: bool = False,
) -> Parallel:
    """The coordinates of ranks by a layout; raises UsageError if it doesn't fit their number."""
    whole = layout.of_world(world, is_stated=is_stated)
    sizes = {name: whole.sizes[name] for name in DIMENSIONS if whole.sizes[name] > 1}
    every = {rank: whole.coordinates(rank) for rank in sorted(set(ranks))}
    return Parallel(
        sizes,
        {rank: {name: found[name] for name in sizes} for rank, found in every.items()},
        origin,
    )


def parallel_of_groups(
    groups: Sequence[ProcessGroup], ranks: Iterable[int], world: int
) -> Parallel | None:
    """The coordinates of ranks by the process groups of a run; None where no group names one.

    If an order of the dimensions reproduces every group, it gives the coordinates of all ranks,
    also of those without a trace. Otherwise a coordinate is the rank's place in its group.
    """
    kinds: dict[str, list[tuple[int, ...]]] = {}
    for group in groups:
        # Data-parallel groups with context-parallel ranks are along two dimensions.
        is_partial = _PARTIAL.search(f"{group.description} {group.name}".casefold())
        if group.kind and not is_partial and len(group.ranks) > 1:
            kinds.setdefault(group.kind, []).append(group.ranks)
    if "pp" in kinds:
        # Neighbouring stages may have a group of two each.
        kinds["pp"] = [tuple(sorted(each)) for each in united(kinds["pp"])]
    if any("dp_replicate" in group.description for group in groups):
        # Replicas and shards are both data-parallel.
        kinds["dp"] = [tuple(sorted(each)) for each in united(kinds["dp"])]
    kinds = {kind: found for kind, found in kinds.items() if len(set(map(len, found))) == 1}
    sizes = {kind: len(found[0]) for kind, found in kinds.items()}
    if not kinds:
        return None
    wanted = sorted(set(ranks))
    layout = _fitting(kinds, sizes, world)
    if layout is not None:
        return parallel_of_layout(layout, wanted, world, FROM_GROUPS)
    places: dict[int, dict[str, int]] = {rank: {} for rank in wanted}
    for kind, members in kinds.items():
        for each in members:
            for place, rank in enumerate(each):
                if rank in places:
                    places[rank][kind] = place
    known = {name: sizes[name] for name in DIMENSIONS if name in sizes}
    note = "the process groups fit no order of the dimensions: a coordinate is a rank's place in "
    return Parallel(known, places, FROM_GROUPS, (f"{note}its group",))


def parallel_of_names(paths: Mapping[int, str], world: int) -> Parallel | None:
    """The coordinates of ranks in the names of their files (`dp0_pp0_tp1_rank1`, `TP-1-DP-0`).

    None unless the names of all ranks of the world give each of them another place.
    """
    one = os.path.basename(next(iter(paths.values()), ""))
    if len(paths) != world or not _COORDINATE.search(one):
        return None
    names = {rank: os.path.basename(path) for rank, path in paths.items()}
    every = {
        rank: {dimension.lower(): int(number) for dimension, number in _COORDINATE.findall(name)}
        for rank, name in sorted(names.items())
    }
    first = next(iter(every.values()), {})
    if any(each.keys() != first.keys() for each in every.values()):
        return None
    values = {name: {each[name] for each in every.values()} for name in first}
    if any(found != set(range(len(found))) for found in values.values()):
        return None
    sizes = {name: len(values[name]) for name in DIMENSIONS if len(values.get(name, ())) > 1}
    places = {tuple(each[name] for name in first if name != "ep") for each in every.values()}
    if not sizes or not len(places) == prod(sizes.get(name, 1) for name in MEGATRON_ORDER) == world:
        return None
    coordinates = {rank: {name: each[name] for name in sizes} for rank, each in every.items()}
    return Parallel(sizes, coordinates, FROM_NAMES)


def _fitting(
    kinds: Mapping[str, Sequence[tuple[int, ...]]], sizes: Mapping[str, int], world: int
) -> RankLayout | None:
    """The complete layout whose groups contain all those seen; Megatron's order is tried first."""
    orders = sorted(permutations(MEGATRON_ORDER), key=lambda order: order != MEGATRON_ORDER)
    for order in orders:
        try:
            layout = RankLayout(sizes, order).of_world(world)
        except UsageError:
            return None
        if prod(layout.sizes[name] for name in MEGATRON_ORDER) == world and all(
            _is_group(layout, kind, each) for kind, members in kinds.items() for each in members
        ):
            return layout
    return None


def _is_group(layout: RankLayout, kind: str, ranks: tuple[int, ...]) -> bool:
    """Whether ranks differ in one dimension alone, which counts up in their order."""
    places = [layout.coordinates(rank) for rank in ranks]
    if [place[kind] for place in places] != list(range(len(ranks))):
        return False
    if kind == "ep":
        rest = [{**place, "dp": place["dp"] // layout.sizes["ep"], "ep": 0} for place in places]
    else:
        free = ("dp", "ep") if kind == "dp" else (kind,)
        rest = [{name: place[name] for name in place if name not in free} for place in places]
    return all(each == rest[0] for each in rest)
