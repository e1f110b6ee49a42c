"""The recorded inputs of an operator's call: shapes, strides, types and values by position."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan, prod
from typing import Any, Final

import msgspec
from msgspec import Struct

from chopper_core.model.hardware import ElementType, element_type, type_bytes
from chopper_core.model.shapes import MIXED

Shape = list[int]

_NO_TENSOR: Final = ("", "Scalar", "ScalarList", "GenericList", "None")
_WHOLE: Final = {int}
_SCALAR_TYPES: Final = {
    0: "byte", 1: "char", 2: "short", 3: "int", 4: "long", 5: "c10::Half", 6: "float",
    7: "double", 11: "bool", 15: "c10::BFloat16", 23: "c10::Float8_e5m2",
    24: "c10::Float8_e4m3fn", 25: "c10::Float8_e5m2fnuz", 26: "c10::Float8_e4m3fnuz",
}  # fmt: skip
"""c10::ScalarType, as an operator's `dtype` input is recorded."""


class Inputs(Struct, frozen=True):
    """The recorded inputs of an operator by position; empty if not recorded."""

    shapes: Sequence[Shape]
    types: Sequence[str] = ()
    values: Sequence[str] = ()
    """Non-tensor inputs, as text."""
    strides: Sequence[Shape] = ()
    lists: Sequence[Sequence[Shape]] = ()
    """The shapes of the tensors of each input that is a list of them."""

    @classmethod
    def parsed(cls, shapes: str, types: str = "", values: str = "", strides: str = "") -> Inputs:
        """The inputs from the JSON texts of a trace; only plain tensors have a shape."""
        given = _list(shapes)
        return cls(
            [plain_shape(each) for each in given],
            [each if isinstance(each, str) else "" for each in _list(types)],
            [each if isinstance(each, str) else "" for each in _list(values)],
            [plain_shape(each) for each in _list(strides)],
            [_shapes(each) for each in given] if "[[[" in shapes or "], [[" in shapes else (),
        )

    def type_of(self, *places: int) -> ElementType:
        """The element type at some positions, UNKNOWN if unknown or if they differ."""
        return element_type(map(self.spelling, places))

    def spelling(self, place: int) -> str:
        """The type at a position as PyTorch spells it, empty if unknown."""
        return self.types[place] if place < len(self.types) else ""

    def types_text(self, *places: int) -> str:
        """The types at some positions, once if they agree; empty if one is unknown."""
        texts = dict.fromkeys(type_text(self.spelling(place)) for place in places)
        return "" if "" in texts else MIXED.join(texts)

    def scalar_type(self, place: int, default: str) -> str:
        """The spelling of a type that is an input itself; the default if None was given."""
        code = self.value(place)
        return _SCALAR_TYPES.get(code, "") if isinstance(code, int) else default

    def value(self, place: int) -> Any:
        """The number, boolean or list at a position, None if unknown."""
        text = self.values[place] if place < len(self.values) else ""
        return json_in(text.replace("True", "true").replace("False", "false"))

    def shape(self, place: int) -> Shape:
        return self.shapes[place] if place < len(self.shapes) else []

    def list_at(self, place: int) -> Sequence[Shape]:
        return self.lists[place] if place < len(self.lists) else ()

    def is_tensor(self, place: int) -> bool:
        """Whether there is a tensor at a position; its type may be unknown."""
        return bool(self.shape(place)) or self.spelling(place) not in (*_NO_TENSOR, "TensorList")

    def distinct(self, place: int) -> Shape:
        """The shape of what a tensor holds in memory: directions that repeat it have the size 1."""
        shape = self.shape(place)
        strides = self.strides[place] if place < len(self.strides) else []
        if len(strides) != len(shape):
            return shape
        return [size if step else min(size, 1) for size, step in zip(shape, strides, strict=True)]

    def tensor_bytes(self, place: int) -> float:
        """The bytes of the tensor at a position: 0 where there is none, NaN if unknown."""
        shape = self.distinct(place)
        if self.spelling(place) in _NO_TENSOR or place >= len(self.shapes):
            return nan if shape else 0.0
        return bytes_of(prod(shape), self.spelling(place))

    def is_transposed(self, place: int) -> bool | None:
        """Whether the last two directions of a tensor are swapped in memory; None if unknown."""
        if place >= min(len(self.strides), len(self.shapes)):
            return None
        if min(len(self.strides[place]), len(self.shapes[place])) < 2:
            return None
        (rows, columns), (step_row, step) = self.shapes[place][-2:], self.strides[place][-2:]
        if step == 1 and (step_row >= columns or rows == 1):
            return False
        return True if step_row == 1 and (step >= rows or columns == 1) else None


def bytes_of(elements: int, spelling: str) -> float:
    """The bytes of elements of a type; NaN if it is unknown."""
    width = type_bytes(spelling)
    return nan if width is None else float(elements * width)


def type_text(spelling: str) -> str:
    """A type as Chopper writes it: `bf16`; one that has no peak as PyTorch spells it."""
    if spelling in _NO_TENSOR:
        return ""
    element = element_type((spelling,))
    return spelling.removeprefix("c10::") if element == ElementType.UNKNOWN else element.text


def plain_shape(given: Any) -> Shape:
    """A list of whole numbers; empty for anything else."""
    return given if isinstance(given, list) and set(map(type, given)) <= _WHOLE else []


def json_in(text: str | bytes) -> Any:
    """What a text of JSON holds; None where it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _shapes(given: Any) -> Sequence[Shape]:
    """The shapes of a list of tensors; empty for anything else."""
    is_list = isinstance(given, list) and all(isinstance(each, list) for each in given)
    return [plain_shape(each) for each in given] if is_list else ()


def _list(text: str) -> list[Any]:
    given = json_in(text)
    return given if isinstance(given, list) else []
