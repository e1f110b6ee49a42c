"""The shape, FLOPs and modelled bytes of one call of an operator, from its recorded inputs.

A product of (m, k) and (k, n) takes 2·m·k·n. Attention of b·h heads, s queries, t keys of width d
takes two products forward, 4·b·h·s·t·d, and five backward, 10·b·h·s·t·d; half of it where it is
causal. A convolution takes 2 per output element, input channel of its group and tap of its
kernel; its backward the same again for the gradient of the input and for that of the weight.
Bytes count each tensor that a call reads or writes once; docs/shapes.md has them by operator.
Sources: UnaryLab/chopper `overhead_breakdown.py`; `torch.utils.flop_counter`; AMD-AGI/TraceLens
`perf_model.py` (bytes); the operators' schemas in PyTorch's `native_functions.yaml` and in
flash-attn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import nan, prod
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.operator_inputs import Inputs, Shape, plain_shape, type_text
from chopper_core.model.hardware import ElementType, type_bytes
from chopper_core.model.shapes import Attention, CallShape, Convolution, Fused, Product
from chopper_core.util.patterns import late

ATTENTION: Final = late(
    r"scaled_dot_product\w{0,99}attention|^flash_attn::_flash_attn"
    r"|^aiter::_?(?:wrapper_)?(?:flash_attn|fmha_v3|mha)_(?:fwd|bwd|forward|backward)$"
)
FUSED: Final = late(r"^triton_(?P<kind>[a-z]+)_fused(?P<operators>(?:_\w+?)??)(?:_\d+)?$")
"""A kernel of torch.compile: the way it loops, and the operators that it fuses."""
BACKWARD_PER_FORWARD: Final = 2.5
"""Attention: five products instead of two."""
_BACKWARD: Final = late(r"backward|bwd", re.IGNORECASE)
HEADS_AFTER_SEQUENCE: Final = late(r"^(?:flash_attn|aiter)::")
_CAUSAL_KERNEL: Final = late(r"causal|GenericAttentionMask(?:<true|ILb1E)", re.IGNORECASE)
_FULL_KERNEL: Final = late(
    r"fmha_(?:fwd|bwd)_hd\d+_(?:bf16|fp16)(?!\w{0,99}causal)|GenericAttentionMask(?:<false|ILb0E)"
)
_FLASH_KERNEL: Final = late(
    r"flash_(?:fwd|bwd)\w{0,99}_kernel<.{0,999}_kernel_traits<.{0,999}>"
    r", (?:true|false), (?P<causal>true|false)\b"
)
"""FlashAttention's kernels: after the traits come dropout and causal."""
_NUMBER_WITH_POINT: Final = late(r"-?\d{1,99}\.\d{0,99}(?:e[+-]?\d+)?")
_SHARE: Final = {False: 1.0, True: 0.5}
"""The part of the scores that attention computes, by whether it is causal."""
_LETTERS: Final = {False: "N", True: "T"}
_BF16: Final = "c10::BFloat16"


class Work(Struct, frozen=True):
    """The work of a call: its shape, and how its kernels share it."""

    call: CallShape
    parts: int = 1
    """Equal parts, each computed by separate kernels."""
    dense: float = nan
    """FLOPs of attention without a mask, where the inputs don't show whether it is causal."""

    @property
    def flops(self) -> float:
        """Of one part; NaN if unknown."""
        return nan if self.call.flops is None else self.call.flops / self.parts

    @property
    def element(self) -> ElementType:
        return ElementType(self.call.element)

    def masked(self, causal: bool) -> Work:
        assert isinstance(self.call.sizes, Attention)
        sizes = replace(self.call.sizes, is_causal=causal)
        return Work(replace(self.call, sizes=sizes, flops=self.dense * _SHARE[causal]), self.parts)


def operator_work(name: str, inputs: Inputs) -> Work | None:
    if ATTENTION.search(name):
        return _attention(name, inputs)
    if fused := FUSED.match(name):
        return _fused(name, fused["operators"], inputs)
    count = _COUNTS.get(name)
    return count(name, inputs) if count else None


def _total(*amounts: float | None) -> float | None:
    """The sum of amounts, None if one is unknown."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def _of_type(elements: int, spelling: str) -> float | None:
    width = type_bytes(spelling)
    return None if width is None else float(elements * width)


def _product_call(
    name: str, inputs: Inputs, first: int, sizes: Product, result: str, elements: int
) -> Work:
    """The call of a product whose operands begin at `first`; `elements` of its result."""
    places = (first, first + 1)
    element = inputs.type_of(*places)
    # PyTorch packs two FP4 values along the inner dimension and counts the pairs.
    if element == ElementType.FP4:
        sizes = replace(sizes, k=2 * sizes.k)
    operands = inputs.types_text(*places)
    produced = type_text(result)
    return Work(
        CallShape(
            name,
            sizes,
            operands,
            produced if produced != operands else "",
            element,
            2.0 * sizes.batch * sizes.m * sizes.n * sizes.k,
            _total(
                *(inputs.tensor_bytes(place) for place in range(len(inputs.shapes))),
                _of_type(elements, result),
            ),
        )
    )


def _product(
    name: str,
    inputs: Inputs,
    first: int = 0,
    directions: int = 0,
    result: Callable[[Inputs], str] | None = None,
) -> Work | None:
    """A product of two matrices, or of batches of them that broadcast, as numpy's.

    `directions` are those that both operands must have; 0: any.
    """
    shapes = inputs.shapes[first : first + 2]
    if len(shapes) < 2 or min(map(len, shapes)) < 2:
        return None
    (*batch, rows, inner), (*again, other, columns) = shapes
    if inner != other or (directions and {directions} != set(map(len, shapes))):
        return None
    try:
        times = prod(np.broadcast_shapes(tuple(batch), tuple(again)))
    except ValueError:
        return None
    elements = times * rows * columns
    if not again:
        # PyTorch folds the batch of the first operand into its rows.
        times, rows = 1, times * rows
    layout = _layout(inputs.is_transposed(first + 1), inputs.is_transposed(first))
    has_bias = first > 0 and bool(inputs.shapes[0])
    sizes = Product(rows, columns, inner, times, layout, has_bias)
    produced = result(inputs) if result else inputs.spelling(first)
    return _product_call(name, inputs, first, sizes, produced, elements)


def _layout(second: bool | None, first: bool | None) -> str:
    if second is None or first is None:
        return ""
    return _LETTERS[second] + _LETTERS[first]


def _linear(name: str, inputs: Inputs) -> Work | None:
    """The product of the input with the transposed weight."""
    if len(inputs.shapes) < 2 or not inputs.shapes[0] or len(inputs.shapes[1]) != 2:
        return None
    (*rows, inner), (columns, again) = inputs.shapes[:2]
    if inner != again:
        return None
    weight = inputs.is_transposed(1)
    given = False if len(inputs.shapes[0]) == 1 else inputs.is_transposed(0)
    has_bias = len(inputs.shapes) > 2 and bool(inputs.shapes[2])
    layout = _layout(None if weight is None else not weight, given)
    sizes = Product(prod(rows), columns, inner, layout=layout, has_bias=has_bias)
    return _product_call(name, inputs, 0, sizes, inputs.spelling(0), prod(rows) * columns)


def _grouped(name: str, inputs: Inputs, offsets: int, dtype: int, default: str = "") -> Work | None:
    """Products of matrices whose rows, columns or inner size are split among groups."""
    if len(inputs.shapes) <= offsets:
        return None
    first, second = inputs.shapes[:2]
    ends = inputs.shapes[offsets]
    match len(first), len(second):
        case 2, 3 if first[1] == second[1]:
            sizes = Product(first[0], second[2], first[1], groups=second[0], split="m")
            elements = first[0] * second[2]
        case 3, 2 if first[2] == second[0]:
            sizes = Product(first[1], second[1], first[2], groups=first[0], split="n")
            elements = first[1] * second[1]
        case 2, 2 if first[1] == second[0] and len(ends) == 1:
            sizes = Product(first[0], second[1], first[1], groups=ends[0], split="k")
            elements = ends[0] * first[0] * second[1]
        case 3, 3 if first[0] == second[0] and first[2] == second[1]:
            sizes = Product(first[1], second[2], first[2], batch=first[0])
            elements = first[0] * first[1] * second[2]
        case _:
            return None
    layout = _layout(inputs.is_transposed(1), inputs.is_transposed(0))
    result = inputs.scalar_type(dtype, default or inputs.spelling(0))
    return _product_call(name, inputs, 0, replace(sizes, layout=layout), result, elements)


def _attention(name: str, inputs: Inputs) -> Work | None:
    is_backward = bool(_BACKWARD.search(name))
    places = (1, 2, 3) if is_backward else (0, 1, 2)
    if len(inputs.shapes) <= places[-1]:
        return None
    query, key, value = (inputs.shapes[place] for place in places)
    if not len(query) == len(key) == len(value) == 4:
        return None
    sequence, head = (1, 2) if HEADS_AFTER_SEQUENCE.search(name) else (2, 1)
    rows = query[0] * query[head] * query[sequence]
    # Backward recomputes the scores, and computes four gradient products.
    widths = 3 * query[3] + 2 * value[3] if is_backward else query[3] + value[3]
    # Forward reads query, key and value and writes the output; backward reads these and the
    # output's gradient, and writes three gradients: each of the four twice.
    elements = (2 if is_backward else 1) * (prod(query) + prod(key) + prod(value) + rows * value[3])
    call = CallShape(
        name,
        Attention(
            query[0], query[head], key[head], query[sequence], key[sequence], query[3], value[3],
            is_backward=is_backward,
        ),
        inputs.types_text(*places[:2]),
        element=inputs.type_of(*places[:2]),
        bytes=_of_type(elements, inputs.spelling(places[0])),
    )  # fmt: skip
    open_mask = Work(call, dense=2.0 * rows * key[sequence] * widths)
    causal = _is_causal(inputs.values)
    if causal is None and (query[sequence] == 1 or _has_mask(name, inputs.shapes)):
        causal = False
    return open_mask if causal is None else open_mask.masked(causal)


def causal_in(kernel: str) -> bool | None:
    """Whether a kernel's name says that its attention is causal; None if unclear."""
    if match := _FLASH_KERNEL.search(kernel):
        return match["causal"] == "true"
    if _FULL_KERNEL.search(kernel):
        return False
    return True if _CAUSAL_KERNEL.search(kernel) else None


def _has_mask(name: str, shapes: Sequence[Shape]) -> bool:
    """Whether the inputs contain a mask of their own: PyTorch allows none next to a causal one.

    It follows the value in PyTorch's forward operators, and has the scores' last two sizes.
    """
    if _BACKWARD.search(name) or HEADS_AFTER_SEQUENCE.search(name) or len(shapes) < 4:
        return False
    return len(shapes[3]) >= 2 and shapes[3][-1] in (1, shapes[1][2])


def _is_causal(values: Sequence[str]) -> bool | None:
    """In every schema it is the first boolean after the dropout, the first float."""
    rest = iter(values)
    if not any(_NUMBER_WITH_POINT.fullmatch(text) for text in rest):
        return None
    truth = {"True": True, "true": True, "False": False, "false": False}
    return next((truth[text] for text in rest if text in truth), None)


def _fused(name: str, operators: str, inputs: Inputs) -> Work | None:
    """A fused kernel: what it reads and writes; the trace doesn't show how it computes."""
    tensors = [
        (tuple(shape), inputs.tensor_bytes(place))
        for place, shape in enumerate(inputs.shapes)
        if shape
    ]
    kind = name.removeprefix("triton_").partition("_")[0]
    return Work(
        CallShape(
            f"triton {kind}",
            Fused(operators.strip("_"), tuple(shape for shape, _ in tensors)),
            inputs.types_text(*(place for place, shape in enumerate(inputs.shapes) if shape)),
            bytes=_total(*(size for _, size in tensors)) if tensors else None,
        )
    )


class _InputPlaces(Struct, frozen=True):
    """Positions of a convolution's inputs in its schema."""

    stride: int
    padding: int
    dilation: int
    groups: int
    transposed: int | None = None


_CONVOLUTIONS: Final[Mapping[str, _InputPlaces]] = {
    "aten::convolution": _InputPlaces(3, 4, 5, 8, 6),
    "aten::_convolution": _InputPlaces(3, 4, 5, 8, 6),
    "aten::conv1d": _InputPlaces(3, 4, 5, 6),
    "aten::conv2d": _InputPlaces(3, 4, 5, 6),
    "aten::conv3d": _InputPlaces(3, 4, 5, 6),
    "aten::cudnn_convolution": _InputPlaces(3, 2, 4, 5),
    "aten::miopen_convolution": _InputPlaces(4, 3, 5, 6),
    "aten::miopen_depthwise_convolution": _InputPlaces(4, 3, 5, 6),
}
_BACKWARD_PLACES: Final = _InputPlaces(4, 5, 6, 9, 7)
_GRADIENTS: Final = {(True, True): "both", (True, False): "input", (False, True): "weight"}


def _convolution(name: str, inputs: Inputs, places: _InputPlaces) -> Work | None:
    if len(inputs.shapes) < 2 or not 3 <= len(inputs.shapes[0]) == len(inputs.shapes[1]):
        return None
    image, weight = inputs.shapes[:2]
    transposed = False if places.transposed is None else inputs.value(places.transposed)
    if transposed is None:
        return None
    steps = _steps(inputs, places, len(image) - 2)
    groups = inputs.value(places.groups)
    if transposed:
        windows: Shape | None = image[2:]
        result = _spread(inputs, image, weight, steps, groups)
    else:
        windows = _windows(image[2:], weight[2:], steps)
        result = None if windows is None else [image[0], weight[0], *windows]
    if windows is None:
        return None
    bias = inputs.tensor_bytes(2) if name != "aten::cudnn_convolution" else 0.0
    return Work(
        CallShape(
            name,
            _sizes(image, weight, steps, groups, bool(transposed)),
            inputs.types_text(0, 1),
            element=inputs.type_of(0, 1),
            flops=_per_window(image[0], windows, weight),
            bytes=_total(
                inputs.tensor_bytes(0) if inputs.types else None,
                inputs.tensor_bytes(1),
                bias,
                None if result is None else _of_type(prod(result), inputs.spelling(0)),
            ),
        )
    )


def _convolution_backward(name: str, inputs: Inputs) -> Work | None:
    """Inputs: gradient of the output, image, weight; 7: transposed; 10: the gradients wanted."""
    if len(inputs.shapes) < 3 or not 3 <= len(inputs.shapes[1]) == len(inputs.shapes[2]):
        return None
    output, image, weight = inputs.shapes[:3]
    transposed, wanted = inputs.value(7), inputs.value(10)
    if transposed is None or not isinstance(wanted, list) or len(output) != len(image):
        return None
    windows = image[2:] if transposed else output[2:]
    gradients = tuple(map(bool, wanted[:2]))
    parts = sum(gradients)
    if not parts:
        return None
    # Either gradient takes kernels of its own, which read two of the three and write one.
    each = _total(*(inputs.tensor_bytes(place) for place in range(3))) if inputs.types else None
    steps = _steps(inputs, _BACKWARD_PLACES, len(image) - 2)
    groups = inputs.value(_BACKWARD_PLACES.groups)
    sizes = _sizes(image, weight, steps, groups, bool(transposed))
    call = CallShape(
        name,
        replace(sizes, gradients=_GRADIENTS[gradients[0], gradients[1]]),
        inputs.types_text(0, 2),
        element=inputs.type_of(0, 2),
        flops=parts * _per_window(image[0], windows, weight),
        bytes=None if each is None else parts * each,
    )
    return Work(call, parts)


def _sizes(
    image: Shape, weight: Shape, steps: Sequence[Shape | None], groups: Any, transposed: bool
) -> Convolution:
    stride, padding, dilation = (tuple(step or ()) for step in steps)
    count = groups if isinstance(groups, int) else 1
    return Convolution(tuple(image), tuple(weight), stride, padding, dilation, count, transposed)


def _per_window(batch: int, windows: Shape, weight: Shape) -> float:
    """A multiply and an add for each window position and element of the weight."""
    return 2.0 * batch * prod(windows) * prod(weight)


def _steps(inputs: Inputs, places: _InputPlaces, directions: int) -> tuple[Shape | None, ...]:
    """Stride, padding and dilation in each direction, None where unknown."""
    return tuple(
        _per_direction(inputs.value(place), directions)
        for place in (places.stride, places.padding, places.dilation)
    )


def _windows(image: Shape, kernel: Shape, steps: Sequence[Shape | None]) -> Shape | None:
    """Number of window positions in each direction: the size of the output."""
    strides, paddings, dilations = steps
    if strides is None or paddings is None or dilations is None or min(strides) < 1:
        return None
    return [
        max(0, (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1)
        for size, taps, stride, padding, dilation in zip(
            image, kernel, strides, paddings, dilations, strict=True
        )
    ]


def _spread(
    inputs: Inputs, image: Shape, weight: Shape, steps: Sequence[Shape | None], groups: Any
) -> Shape | None:
    """The result's shape of a transposed convolution; None if a size is unknown."""
    strides, paddings, dilations = steps
    extra = _per_direction(inputs.value(7), len(image) - 2)
    if None in (strides, paddings, dilations, extra) or not isinstance(groups, int):
        return None
    assert strides and paddings and dilations and extra
    sizes = [
        (size - 1) * stride - 2 * padding + dilation * (taps - 1) + more + 1
        for size, taps, stride, padding, dilation, more in zip(
            image[2:], weight[2:], strides, paddings, dilations, extra, strict=True
        )
    ]
    return [image[0], weight[1] * groups, *sizes]


def _per_direction(value: Any, directions: int) -> Shape | None:
    numbers = plain_shape(value)
    if len(numbers) == 1:
        return numbers * directions
    return numbers if len(numbers) == directions else None


_COUNTS: Final[Mapping[str, Callable[[str, Inputs], Work | None]]] = {
    "aten::mm": partial(_product, directions=2),
    "aten::addmm": partial(_product, first=1, directions=2),
    "aten::_scaled_mm": partial(
        _product, directions=2, result=lambda inputs: inputs.scalar_type(6, inputs.spelling(0))
    ),
    "aten::_int_mm": partial(_product, directions=2, result=lambda _: "int"),
    "aten::bmm": partial(_product, directions=3),
    "aten::baddbmm": partial(_product, first=1, directions=3),
    "aten::linear": _linear,
    "aten::matmul": _product,
    "aten::_grouped_mm": partial(_grouped, offsets=2, dtype=4),
    "aten::_scaled_grouped_mm": partial(_grouped, offsets=4, dtype=7, default=_BF16),
    "aten::convolution_backward": _convolution_backward,
    **{name: partial(_convolution, places=places) for name, places in _CONVOLUTIONS.items()},
}
