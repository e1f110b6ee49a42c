"""Coordinates of ranks: from layouts in Megatron's order, and from process groups."""

from __future__ import annotations

from itertools import product

import pytest

from chopper_core.model.overrides import overrides_of, parse_overrides
from chopper_core.model.parallel import (
    MEGATRON_ORDER,
    ProcessGroup,
    RankLayout,
    kind_of,
    layout_of_settings,
    parallel_of_groups,
    parallel_of_layout,
    parse_layout,
)
from chopper_core.util.errors import UsageError

NAMES = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
}


def groups_of(sizes: dict[str, int], order: tuple[str, ...]) -> list[ProcessGroup]:
    """The groups of each dimension, by counting ranks along the order with nested loops."""
    places = {}
    ranges = [range(sizes.get(name, 1)) for name in reversed(order)]
    for rank, place in enumerate(product(*ranges)):
        places[rank] = dict(zip(reversed(order), place, strict=True))
    found = []
    for name, description in NAMES.items():
        members: dict[tuple[int, ...], list[int]] = {}
        for rank, place in places.items():
            rest = tuple(place[other] for other in order if other != name)
            members.setdefault(rest, []).append(rank)
        found += [
            ProcessGroup(str(number), description, tuple(ranks))
            for number, ranks in enumerate(members.values())
        ]
    return found


@pytest.mark.parametrize(
    ("layout", "world", "rank", "expected"),
    [
        # The examples of CharLLM-PPT's facts, in Megatron's default order.
        ("tp=2,pp=16", 32, 31, {"tp": 1, "dp": 0, "pp": 15}),
        ("tp=8,pp=2", 32, 31, {"tp": 7, "dp": 1, "pp": 1}),
        ("ep=8,pp=4", 32, 13, {"tp": 0, "dp": 5, "ep": 5, "pp": 1}),
        ("tp=2,cp=2,pp=2", 32, 29, {"tp": 1, "cp": 0, "dp": 3, "pp": 1}),
        ("tp=2,pp=4,order=tp-pp-dp", 32, 11, {"tp": 1, "pp": 1, "dp": 1}),
    ],
)
def test_a_layout_gives_coordinates(
    layout: str, world: int, rank: int, expected: dict[str, int]
) -> None:
    found = parse_layout(layout).of_world(world).coordinates(rank)
    assert {name: found[name] for name in expected} == expected


def test_only_dimensions_of_several_ranks_are_known() -> None:
    found = parallel_of_layout(parse_layout("tp=2,pp=4"), range(8), 8)
    assert found.sizes == {"pp": 4, "tp": 2}
    assert found.text == "tp 2 × pp 4"
    assert found.coordinates[7] == {"pp": 3, "tp": 1}


@pytest.mark.parametrize(
    "text", ["", "tp", "tp=0", "tp=2x", "xp=2", "tp=2,order=tp-tp", "tp=2,order=up", "order=tp"]
)
def test_an_invalid_layout_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"layout such as|order="):
        parse_layout(text)


@pytest.mark.parametrize("text", ["tp=3", "tp=2,dp=2,pp=4", "ep=3,tp=2"])
def test_a_layout_that_does_not_fit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="doesn't"):
        parallel_of_layout(parse_layout(text), range(32), 32)


def test_a_layout_is_part_of_an_address() -> None:
    overrides = overrides_of(parallel="PP=16, TP=2 ,order=tp-dp-pp-cp")
    assert overrides.parallel == "pp=16,tp=2,order=tp-dp-pp-cp"
    assert parse_overrides({"parallel": overrides.parallel}) == overrides
    # It needs no other alignment of the files, so that it is allowed for a store.
    assert not overrides


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "tp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("mesh_dp_shard", "dp"),
        ("mesh_tp", "tp"),
        ("pp:0", "pp"),
        ("tp_3", "tp"),
        ("MODEL_PARALLEL_GROUP", ""),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", ""),
        ("EMBEDDING_GROUP", ""),
        ("default_pg", ""),
        ("undefined", ""),
        ("17", ""),
        ("", ""),
    ],
)
def test_a_group_says_its_dimension(text: str, kind: str) -> None:
    assert kind_of(text) == kind


@pytest.mark.parametrize(
    ("sizes", "order"),
    [
        ({"tp": 2, "pp": 4, "dp": 4}, MEGATRON_ORDER),
        ({"tp": 2, "pp": 4, "dp": 4}, ("tp", "pp", "dp", "cp")),
        ({"pp": 2, "dp": 4}, ("dp", "pp", "tp", "cp")),
        ({"tp": 2, "cp": 2, "dp": 2, "pp": 2}, ("tp", "cp", "dp", "pp")),
    ],
)
def test_groups_give_the_coordinates_of_all_ranks(
    sizes: dict[str, int], order: tuple[str, ...]
) -> None:
    world = 1
    for size in sizes.values():
        world *= size
    groups = groups_of(sizes, order)
    expected = parallel_of_layout(RankLayout(sizes, order), range(world), world)
    # The traces of the ranks with tp 0 and dp 0 are enough: the others follow.
    some = [group for group in groups if 0 in group.ranks]
    for seen in (groups, some):
        found = parallel_of_groups(seen, range(world), world)
        assert found is not None
        assert found.coordinates == expected.coordinates


def test_expert_groups_lie_within_the_replicas() -> None:
    groups = groups_of({"tp": 2, "dp": 4}, MEGATRON_ORDER)
    groups += [
        ProcessGroup("e", "EXPERT_MODEL_PARALLEL_GROUP", ranks)
        for ranks in ((0, 2), (1, 3), (4, 6), (5, 7))
    ]
    found = parallel_of_groups(groups, range(8), 8)
    assert found is not None
    assert found.sizes == {"dp": 4, "ep": 2, "tp": 2}
    assert [found.coordinates[rank]["ep"] for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]


def test_shards_and_replicas_are_both_data_parallel() -> None:
    groups = [
        ProcessGroup("1", "mesh_dp_shard", (0, 1)),
        ProcessGroup("2", "mesh_dp_shard", (2, 3)),
        ProcessGroup("3", "mesh_dp_replicate", (0, 2)),
        ProcessGroup("4", "mesh_dp_replicate", (1, 3)),
    ]
    found = parallel_of_groups(groups, range(4), 4)
    assert found is not None
    assert found.sizes == {"dp": 4}


def test_groups_in_no_order_count_by_their_place() -> None:
    groups = [ProcessGroup("a", "mesh_tp", (0, 3)), ProcessGroup("b", "mesh_tp", (1, 2))]
    found = parallel_of_groups(groups, range(5), 4)
    assert found is not None
    assert found.notes
    assert [found.coordinates.get(rank, {}).get("tp") for rank in range(5)] == [0, 0, 1, 1, None]


def test_groups_without_a_dimension_say_nothing() -> None:
    assert parallel_of_groups([ProcessGroup("3", "undefined", (0, 1))], range(4), 4) is None


def test_settings_of_a_job_give_a_layout() -> None:
    settings = {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": "16",
        "sequence_parallel": True,
        "micro_batch_size": 4,
    }
    found = layout_of_settings(settings)
    assert found is not None
    assert found.text == "pp=16,tp=2"
    assert layout_of_settings({"model": "gpt3"}) is None


def test_pairs_of_neighbouring_stages_chain_up_to_a_pipeline() -> None:
    pairs = [(0, 1), (1, 2), (2, 3), (1, 0)]
    groups = [ProcessGroup(f"3{first}", "mesh_pp", (first, last)) for first, last in pairs]
    found = parallel_of_groups(groups, range(4), 4)
    assert found is not None
    assert found.sizes == {"pp": 4}
    assert [found.coordinates[rank]["pp"] for rank in range(4)] == [0, 1, 2, 3]
