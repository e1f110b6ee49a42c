"""The floating-point operations of one call of an operator, from its recorded inputs.

A product of (m, k) and (k, n) takes 2·m·k·n. Attention of b·h heads, s queries, t keys of width d
takes two products forward, 4·b·h·s·t·d, and five backward, 10·b·h·s·t·d; half of it where it is
causal. A convolution takes 2 per output element, input channel of its group and tap of its
kernel; its backward the same again for the gradient of the input and for that of the weight.
Sources: UnaryLab/chopper `overhead_breakdown.py`; `torch.utils.flop_counter`; the operators'
schemas in PyTorch's `native_functions.yaml` and in flash-attn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import nan, prod
from typing import Any, Final

from msgspec import Struct

from chopper_core.model.hardware import ElementType, element_type

Shape = list[int]

ATTENTION: Final = re.compile(r"scaled_dot_product\w*attention|^flash_attn::_flash_attn")
BACKWARD_PER_FORWARD: Final = 2.5
"""Attention: five products instead of two."""
_BACKWARD: Final = re.compile(r"backward", re.IGNORECASE)
_HEADS_AFTER_SEQUENCE: Final = re.compile(r"^flash_attn::")
_NUMBER_WITH_POINT: Final = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?")
_SHARE: Final = {False: 1.0, True: 0.5}
"""The part of the scores that attention computes, by whether it is causal."""
_TRUTH: Final = {"True": True, "False": False, "true": True, "false": False}


class Inputs(Struct, frozen=True):
    """The recorded inputs of an operator by position; empty if not recorded."""

    shapes: Sequence[Shape]
    types: Sequence[str] = ()
    values: Sequence[str] = ()
    """Non-tensor inputs, as text."""

    @classmethod
    def parsed(cls, shapes: str, types: str = "", values: str = "") -> Inputs:
        """The inputs from the JSON texts of a trace; only plain tensors have a shape."""
        return cls(
            [_shape(given) for given in _list(shapes)],
            [given if isinstance(given, str) else "" for given in _list(types)],
            [given if isinstance(given, str) else "" for given in _list(values)],
        )

    def type_of(self, *places: int) -> ElementType:
        """The element type at some positions, UNKNOWN if unknown or if they differ."""
        return element_type(
            self.types[place] if place < len(self.types) else "" for place in places
        )

    def value(self, place: int) -> Any:
        """The number, boolean or list at a position, None if unknown."""
        text = self.values[place] if place < len(self.values) else ""
        if text in _TRUTH:
            return _TRUTH[text]
        try:
            return json.loads(text.replace("True", "true").replace("False", "false"))
        except (ValueError, RecursionError):
            return None


class Work(Struct, frozen=True):
    """The floating-point operations of a call, and the type of its operands."""

    flops: float
    """Of one part; NaN if the inputs don't show whether attention is causal."""
    element: ElementType
    parts: int = 1
    """Equal parts, each computed by separate kernels."""
    dense: float = nan
    """Of attention without a mask, where `flops` is NaN."""

    def masked(self, causal: bool) -> Work:
        """The work of attention that is known to be causal or not."""
        return Work(self.dense * _SHARE[causal], self.element, self.parts)


def operator_work(name: str, inputs: Inputs) -> Work | None:
    """The work of one operator call, None if it has none or lacks the inputs."""
    if ATTENTION.search(name):
        return _attention(name, inputs)
    count = _COUNTS.get(name)
    return count(inputs) if count else None


def _product(inputs: Inputs, first: int = 0) -> Work | None:
    flops = _of_product(inputs.shapes[first : first + 2])
    if flops is None:
        return None
    element = inputs.type_of(first, first + 1)
    # PyTorch packs two FP4 values along the inner dimension and counts the pairs.
    return Work(2 * flops if element == ElementType.FP4 else flops, element)


def _of_product(shapes: Sequence[Shape]) -> float | None:
    if len(shapes) < 2 or len(shapes[0]) != 2 or len(shapes[1]) != 2:
        return None
    (rows, inner), (again, columns) = shapes
    return 2.0 * rows * inner * columns if inner == again else None


def _batched(inputs: Inputs, first: int = 0) -> Work | None:
    shapes = inputs.shapes[first : first + 2]
    if len(shapes) < 2 or len(shapes[0]) != 3 or len(shapes[1]) != 3:
        return None
    single = _of_product([shape[1:] for shape in shapes])
    if single is None:
        return None
    return Work(single * shapes[0][0], inputs.type_of(first, first + 1))


def _linear(inputs: Inputs) -> Work | None:
    """The product of the input with the transposed weight."""
    if len(inputs.shapes) < 2 or not inputs.shapes[0] or len(inputs.shapes[1]) != 2:
        return None
    (*rows, inner), (columns, again) = inputs.shapes[:2]
    if inner != again:
        return None
    return Work(2.0 * prod(rows) * inner * columns, inputs.type_of(0, 1))


def _attention(name: str, inputs: Inputs) -> Work | None:
    is_backward = bool(_BACKWARD.search(name))
    places = (1, 2, 3) if is_backward else (0, 1, 2)
    if len(inputs.shapes) <= places[-1]:
        return None
    query, key, value = (inputs.shapes[place] for place in places)
    if not len(query) == len(key) == len(value) == 4:
        return None
    sequence, head = (1, 2) if _HEADS_AFTER_SEQUENCE.search(name) else (2, 1)
    pairs = float(query[0] * query[head] * query[sequence] * key[sequence])
    # Backward recomputes the scores, and computes four gradient products.
    widths = 3 * query[3] + 2 * value[3] if is_backward else query[3] + value[3]
    dense = Work(nan, inputs.type_of(*places[:2]), dense=2.0 * pairs * widths)
    causal = _is_causal(inputs.values)
    if causal is None and (query[sequence] == 1 or _has_mask(name, inputs.shapes)):
        causal = False
    return dense if causal is None else dense.masked(causal)


def _has_mask(name: str, shapes: Sequence[Shape]) -> bool:
    """Whether the inputs contain a mask of their own: PyTorch allows none beside a causal one.

    It follows the value in PyTorch's forward operators, and has the scores' last two sizes.
    """
    if _BACKWARD.search(name) or _HEADS_AFTER_SEQUENCE.search(name) or len(shapes) < 4:
        return False
    return len(shapes[3]) >= 2 and shapes[3][-1] in (1, shapes[1][2])


def _is_causal(values: Sequence[str]) -> bool | None:
    """In every schema it is the first boolean after the dropout, the first float."""
    rest = iter(values)
    if not any(_NUMBER_WITH_POINT.fullmatch(text) for text in rest):
        return None
    return next((_TRUTH[text] for text in rest if text in _TRUTH), None)


class _Places(Struct, frozen=True):
    """Positions of a convolution's inputs in its schema."""

    stride: int
    padding: int
    dilation: int
    transposed: int | None = None


_CONVOLUTIONS: Final[Mapping[str, _Places]] = {
    "aten::convolution": _Places(3, 4, 5, 6),
    "aten::_convolution": _Places(3, 4, 5, 6),
    "aten::conv1d": _Places(3, 4, 5),
    "aten::conv2d": _Places(3, 4, 5),
    "aten::conv3d": _Places(3, 4, 5),
    "aten::cudnn_convolution": _Places(3, 2, 4),
    "aten::miopen_convolution": _Places(4, 3, 5),
    "aten::miopen_depthwise_convolution": _Places(4, 3, 5),
}


def _convolution(inputs: Inputs, places: _Places) -> Work | None:
    if len(inputs.shapes) < 2 or not _fit(*inputs.shapes[:2]):
        return None
    image, weight = inputs.shapes[:2]
    transposed = False if places.transposed is None else inputs.value(places.transposed)
    if transposed is None:
        return None
    element = inputs.type_of(0, 1)
    if transposed:
        return Work(_per_window(image[0], image[2:], weight), element)
    windows = _windows(inputs, places, image[2:], weight[2:])
    return None if windows is None else Work(_per_window(image[0], windows, weight), element)


def _convolution_backward(inputs: Inputs) -> Work | None:
    """Inputs: gradient of the output, image, weight; 7: transposed; 10: the gradients wanted."""
    if len(inputs.shapes) < 3 or not _fit(*inputs.shapes[1:3]):
        return None
    output, image, weight = inputs.shapes[:3]
    transposed, wanted = inputs.value(7), inputs.value(10)
    if transposed is None or not isinstance(wanted, list) or len(output) != len(image):
        return None
    windows = image[2:] if transposed else output[2:]
    parts = sum(map(bool, wanted[:2]))
    if not parts:
        return None
    return Work(_per_window(image[0], windows, weight), inputs.type_of(0, 2), parts)


def _fit(image: Shape, weight: Shape) -> bool:
    return 3 <= len(image) == len(weight)


def _per_window(batch: int, windows: Shape, weight: Shape) -> float:
    """A multiply and an add for each window position and element of the weight."""
    return 2.0 * batch * prod(windows) * prod(weight)


def _windows(inputs: Inputs, places: _Places, image: Shape, kernel: Shape) -> Shape | None:
    """Number of window positions in each direction: the size of the output."""
    strides, paddings, dilations = (
        _per_direction(inputs.value(place), len(image))
        for place in (places.stride, places.padding, places.dilation)
    )
    if strides is None or paddings is None or dilations is None or min(strides) < 1:
        return None
    return [
        max(0, (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1)
        for size, taps, stride, padding, dilation in zip(
            image, kernel, strides, paddings, dilations, strict=True
        )
    ]


def _per_direction(value: Any, directions: int) -> Shape | None:
    numbers = _shape(value)
    if len(numbers) == 1:
        return numbers * directions
    return numbers if len(numbers) == directions else None


_COUNTS: Final[Mapping[str, Callable[[Inputs], Work | None]]] = {
    "aten::mm": _product,
    "aten::addmm": lambda inputs: _product(inputs, 1),
    "aten::_scaled_mm": _product,
    "aten::_int_mm": _product,
    "aten::bmm": _batched,
    "aten::baddbmm": lambda inputs: _batched(inputs, 1),
    "aten::linear": _linear,
    "aten::convolution_backward": _convolution_backward,
    **{name: partial(_convolution, places=places) for name, places in _CONVOLUTIONS.items()},
}


def _list(text: str) -> list[Any]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return given if isinstance(given, list) else []


def _shape(given: Any) -> Shape:
    is_plain = isinstance(given, list) and all(type(number) is int for number in given)
    return given if is_plain else []
