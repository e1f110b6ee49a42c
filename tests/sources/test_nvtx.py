"""Operators in ranges of NVTX and roctx."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.sources.nvtx import operator_of, with_operators
from chopper_core.sources.trace import HostCategory, HostRanges, InputTexts, blank


@pytest.mark.parametrize(
    ("title", "found"),
    [
        ("aten::mm, seq = 12, op_id = 7, sizes = [[8, 4], [2]]", ("aten::mm", "[[8, 4], [2]]")),
        ("aten::mm, op_id = 7", ("aten::mm", "")),
        ("MmBackward0, seq = 3, op_id = 9, input_op_ids = [(1,0)], sizes = [[8]]",
         ("MmBackward0", "[[8]]")),
        ("step 3", None),
        ("a, seq = 1", None),
    ],
)  # fmt: skip
def test_names_of_emit_nvtx(title: str, found: tuple[str, str] | None) -> None:
    assert operator_of(title) == found


def test_ranges_of_one_operator_have_one_name() -> None:
    names = ["kernel", "aten::mm, seq = 1, op_id = 2, sizes = [[8]]", "step 3",
             "aten::mm, seq = 3, op_id = 4, sizes = [[8]]"]  # fmt: skip
    given = replace(blank(HostRanges, 3), name=np.array([1, 2, 3], np.int32))
    found = with_operators(names, given)
    assert [found.names[code] for code in found.ranges.name] == ["aten::mm", "step 3", "aten::mm"]
    operator, annotation = HostCategory.OPERATOR, HostCategory.ANNOTATION
    assert found.ranges.category.tolist() == [operator, annotation, operator]
    assert found.inputs == [InputTexts("[[8]]")] and found.ranges.inputs.tolist() == [0, -1, 0]
    assert found.plain.tolist() == [0, 4, 2, 4, -1] and list(found.names[:4]) == names
