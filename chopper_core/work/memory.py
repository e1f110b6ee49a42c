"""The bytes of the call of an operator that memory limits, after the table of `model/traffic`."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, isfinite, nan, prod
from typing import Any, Final

import numpy as np

from chopper_core.model.hardware import type_bytes
from chopper_core.model.operator_inputs import Inputs, Shape, bytes_of, plain_shape
from chopper_core.model.shapes import CallShape, Moved
from chopper_core.model.traffic import Tensor, Traffic, traffic_of
from chopper_core.util.patterns import late

_LIST: Final = "TensorList"
_WIDTH: Final = late(
    r"OpaqueType<(?P<bytes>\d+)u?>"
    r"|\b(?P<type>double|float|c10::BFloat16|c10::Half|unsigned char|signed char|bool|long|short"
    r"|int)\b"
)
"""The first type in the name of a kernel that takes a list of tensors is that of the elements."""
_RANKS: Final = (
    *("bool", "unsignedchar", "signedchar", "short", "int", "long"),
    *("half", "bfloat16", "float", "double"),
)


def moved_elements(name: str, inputs: Inputs) -> tuple[CallShape, float] | None:
    """The call of an operator that memory limits; None for others, and without its sizes.

    The number is how many elements it reads and writes, where the trace lacks their type and the
    name of its kernel may have it (`width_in`); else NaN.
    """
    if (traffic := traffic_of(name)) is None:
        return None
    untyped = size = 0.0
    result = ""
    for is_write, tensors in ((False, traffic.reads), (True, traffic.writes)):
        for tensor in tensors:
            elements, spelling = _amount(tensor, inputs, traffic, is_write=is_write)
            if spelling == _LIST:
                untyped += elements
            elif elements:
                size += bytes_of(1, spelling) * elements
            if tensor.how and tensor.how in "/-*~:^+" and is_write and not result:
                result = f"-> {elements:.0f}" if isfinite(elements) else ""
    places = [place for place, shape in enumerate(inputs.shapes) if shape]
    lists = [f"{len(each)} tensors of {_of_list(each):.0f}" for each in inputs.lists if each]
    sizes = dict.fromkeys("x".join(map(str, inputs.distinct(place))) for place in places)
    is_known = isfinite(size) and not untyped
    if not is_known and not (isfinite(untyped) and size == 0):
        return None
    call = CallShape(
        name,
        Moved(" ".join((*lists[:1], *sizes, *([result] if result else [])))),
        inputs.types_text(*places) if places else "",
        bytes=size if is_known else None,
    )
    return call, nan if is_known else untyped


def width_in(kernel: str) -> int:
    """The bytes of an element in the name of a kernel that takes a list of tensors; 0 if none."""
    match = _WIDTH.search(kernel)
    if match is None:
        return 0
    return int(match["bytes"] or type_bytes(match["type"]) or 0)


def _of_list(shapes: Sequence[Shape]) -> float:
    return float(sum(map(prod, shapes)))


def _amount(
    tensor: Tensor, inputs: Inputs, traffic: Traffic, *, is_write: bool
) -> tuple[float, str]:
    """The elements of a tensor, NaN if unknown, and their type."""
    place = tensor.place
    if place < 0:
        operands = [each.place for each in traffic.reads]
        return _broadcast([inputs.shape(each) for each in operands]), (
            tensor.type or _promoted(inputs, operands)
            if not tensor.type.isdecimal()
            else inputs.spelling(int(tensor.type))
        )
    spelling = inputs.spelling(place)
    if spelling == _LIST:
        # Traces record the shapes of all lists, or of none.
        return (_of_list(inputs.list_at(place)) if any(inputs.lists) else nan), _LIST
    if not inputs.is_tensor(place):
        return 0.0, ""
    shape = inputs.shape(place)
    if traffic.is_elementwise and not shape and not is_write:
        return 0.0, ""
    sizes = shape if is_write or tensor.how else inputs.distinct(place)
    return _sized(tensor, sizes, inputs), _typed(tensor, spelling, inputs)


def _sized(tensor: Tensor, shape: Shape, inputs: Inputs) -> float:
    whole = float(prod(shape))
    if not tensor.how:
        return whole
    if tensor.how == "+":
        return whole / shape[-1] * (shape[-1] + tensor.by) if whole else nan
    given = inputs.value(tensor.by)
    if tensor.how == "x":
        table = inputs.shape(tensor.by)
        return whole * table[-1] if table else nan
    if tensor.how in "/-" and len(inputs.shapes) <= 2 and not inputs.is_tensor(1):
        # The overload that reduces all dimensions: it names none.
        return 1.0
    if len(inputs.values) <= tensor.by:
        return nan
    match tensor.how:
        case "!":
            return whole if given == 0 else 1.0 if isinstance(given, int) else nan
        case "/" | "-":
            dims = _dims(tensor, given)
            return whole if not shape else _reduced(shape, dims)
        case "*":
            return float(given * shape[-1]) if isinstance(given, int) and shape else nan
        case "~":
            if not isinstance(given, int) or not -len(shape) <= given < len(shape):
                return nan
            return whole / max(shape[given], 1) * prod(inputs.shape(tensor.by + 1))
        case ":":
            last = plain_shape(given)
            return float(prod([*shape[: -len(last)], *last])) if last else nan
    return _pooled(tensor.by, shape, inputs)


def _dims(tensor: Tensor, given: Any) -> list[int] | None:
    """The dimensions of a reduction; None: all."""
    if isinstance(given, list):
        return plain_shape(given) or None
    return [given] if tensor.how == "-" and type(given) is int else None


def _reduced(shape: Shape, dims: list[int] | None) -> float:
    if dims is None:
        return 1.0
    if not all(-len(shape) <= each < len(shape) for each in dims):
        return nan
    gone = {each % len(shape) for each in dims}
    return float(prod(size for place, size in enumerate(shape) if place not in gone))


def _pooled(first: int, shape: Shape, inputs: Inputs) -> float:
    window, stride, padding, dilation = (
        plain_shape(inputs.value(place)) for place in range(first, first + 4)
    )
    directions = max(len(window), 2)
    if not window or len(shape) <= directions:
        return nan
    flags = (inputs.value(place) for place in range(first + 3, len(inputs.values)))
    rounded = ceil if next((flag for flag in flags if isinstance(flag, bool)), False) else floor
    windows, steps, margins, taps = (
        (each * directions)[:directions] if each else [usual] * directions
        for each, usual in ((window, 1), (stride or window, 1), (padding, 0), (dilation, 1))
    )
    sizes = [
        rounded((size + 2 * margin - tap * (wide - 1) - 1) / max(step, 1)) + 1
        for size, wide, step, margin, tap in zip(
            shape[-directions:], windows, steps, margins, taps, strict=True
        )
    ]
    return float(prod([*shape[:-directions], *sizes]))


def _typed(tensor: Tensor, spelling: str, inputs: Inputs) -> str:
    kind, place = tensor.type[:1], tensor.type[1:]
    if kind == "=":
        return inputs.scalar_type(int(place), spelling) if inputs.values else ""
    if kind == "?":
        if inputs.values:
            return "float" if inputs.value(int(place)) is True else spelling
        return spelling if spelling == "float" else ""
    if tensor.type == "index":
        return "long" if _dims(tensor, inputs.value(tensor.by)) is not None else "nothing"
    if tensor.type.isdecimal():
        return inputs.spelling(int(tensor.type))
    if tensor.type or tensor.how != "/":
        return tensor.type or spelling
    # A sum of whole numbers is one of 64 bits, unless the dtype among its inputs says otherwise.
    given = inputs.value(tensor.by)
    dtype = tensor.by if type(given) is int else tensor.by + 2
    is_whole = _rank(spelling) < _RANKS.index("half")
    return inputs.scalar_type(dtype, "long" if is_whole else spelling)


def _broadcast(shapes: Sequence[Shape]) -> float:
    try:
        return float(prod(np.broadcast_shapes(*map(tuple, shapes))))
    except ValueError:
        return nan


def _rank(spelling: str) -> int:
    plain = "".join(spelling.removeprefix("c10::").split()).lower()
    plain = {"longint": "long", "shortint": "short", "byte": "unsignedchar"}.get(plain, plain)
    return _RANKS.index(plain) if plain in _RANKS else -1


def _promoted(inputs: Inputs, places: Sequence[int]) -> str:
    """The type of the result of operands; empty if one is unknown.

    An operand without dimensions counts only where no other is of its kind: whole or not.
    """
    found = [(inputs.shape(each), inputs.spelling(each)) for each in places]
    known = [
        (bool(shape), _rank(spelling), spelling)
        for (shape, spelling), place in zip(found, places, strict=True)
        if inputs.is_tensor(place)
    ]
    if not known or any(rank < 0 for _, rank, _ in known):
        # Types that no other meets, such as complex ones, stay.
        spellings = {spelling for _, _, spelling in known}
        return spellings.pop() if len(spellings) == 1 else ""
    sized = max((each for each in known if each[0]), key=lambda each: each[1], default=None)
    scalar = max((each for each in known if not each[0]), key=lambda each: each[1], default=None)
    if sized is None or scalar is None:
        chosen = max(known, key=lambda each: each[1])
        halves = {spelling for _, rank, spelling in known if _RANKS[rank] in ("half", "bfloat16")}
        is_mixed = len(halves) > 1 and chosen[1] < _RANKS.index("float")
        return "float" if is_mixed else chosen[2]
    real = _RANKS.index("half")
    return "float" if scalar[1] >= real > sized[1] else sized[2]
