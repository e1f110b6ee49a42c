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
from functools import cache, partial
from math import isfinite, isnan, nan, prod
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.hardware import ElementType
from chopper_core.model.operator_inputs import Inputs, Shape, bytes_of, plain_shape, type_text
from chopper_core.model.shapes import Attention, CallShape, Convolution, Fused, Moved, Product
from chopper_core.model.traffic import traffic_of
from chopper_core.util import plugins
from chopper_core.util.patterns import late
from chopper_core.util.plugins import Plugin
from chopper_core.work.kernel_classes import FUSED, MASK_WORDS, has_any
from chopper_core.work.memory import moved_elements

ATTENTION: Final = late(
    r"scaled_dot_product\w{0,99}attention|^flash_attn::_flash_attn"
    r"|^aiter::_?(?:wrapper_)?(?:flash_attn|fmha_v3|mha)_(?:varlen_)?"
    r"(?:fwd|bwd|forward|backward|batch_prefill)$"
)
PACKED: Final = late(r"varlen|batch_prefill")
"""Attention over sequences that follow each other in one dimension."""
BACKWARD_PER_FORWARD: Final = 2.5
"""Attention: five products instead of two."""
CAUSAL, FULL = 2, 1
"""What the name of a kernel says of the mask of its attention."""
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


class Work(Struct, frozen=True):
    """The work of a call: its shape, and how its kernels share it."""

    call: CallShape
    parts: int = 1
    """Equal parts, each computed by separate kernels."""
    dense: float = nan
    """FLOPs of attention without a mask, where the inputs don't show whether it is causal."""
    untyped: float = nan
    """Elements that memory moves, where the inputs don't show their type."""

    @property
    def flops(self) -> float:
        """Of one part; NaN if unknown."""
        return nan if self.call.flops is None else self.call.flops / self.parts

    @property
    def bytes(self) -> float:
        """Of one part; NaN if unknown."""
        return nan if self.call.bytes is None else self.call.bytes / self.parts

    @property
    def element(self) -> ElementType:
        return ElementType(self.call.element)

    @property
    def is_moved(self) -> bool:
        """Whether memory limits it, by bytes alone."""
        return isinstance(self.call.sizes, Moved)

    def completed(self, said: int) -> Work:
        """The work with what a kernel's name says: CAUSAL or FULL, or the bytes of an element."""
        if isfinite(self.untyped):
            return Work(replace(self.call, bytes=_known(self.untyped * said)))
        is_open = isfinite(self.dense) and isnan(self.flops)
        return self.masked(said == CAUSAL) if is_open else self

    def masked(self, causal: bool) -> Work:
        assert isinstance(self.call.sizes, Attention)
        sizes = replace(self.call.sizes, is_causal=causal)
        share = _scored(sizes, HEADS_AFTER_SEQUENCE.search(self.call.operator) is not None)
        return Work(replace(self.call, sizes=sizes, flops=_known(self.dense * share)), self.parts)


def _scored(sizes: Attention, ends_together: bool) -> float:
    """The part of the scores that attention computes: half of a square if it is causal.

    The last query attends to the last key, or, as in PyTorch, the first to the first.
    """
    if not sizes.is_causal:
        return nan if sizes.window else 1.0
    queries, keys = sizes.queries, sizes.keys
    shared = min(queries, keys)

    def up_to(key: float) -> float:
        return (
            key * key / 2
            if key <= sizes.window or not sizes.window
            else (sizes.window * (key - sizes.window / 2))
        )

    scores = up_to(keys) - up_to(keys - shared) if ends_together else up_to(shared)
    scores += 0 if ends_together else (queries - shared) * keys
    return scores / (queries * keys) if queries and keys else 0.0


class OperatorModel:
    """The work of one kind of operator, from the recorded inputs of a call.

    To add one, inherit from it, from `ProductModel` or from `MovedModel`, and put an instance into
    `MODELS`; in a package of your own name the class as an entry point of the group
    `chopper.operators` (docs/plugins.md).
    """

    names: Sequence[str] = ()
    """The operators, as a trace names them: `aten::mm`."""

    def matches(self, name: str) -> bool:
        return name in self.names

    def work(self, name: str, inputs: Inputs) -> Work | None:
        """The shape, FLOPs and bytes of a call; None where its inputs don't tell them."""
        raise NotImplementedError


class ProductModel(OperatorModel):
    """A product of matrices: its sizes are enough, FLOPs and bytes follow."""

    first: int = 0
    """The position of the first operand; the second follows it."""

    def sizes(self, inputs: Inputs) -> Product | None:
        raise NotImplementedError

    def work(self, name: str, inputs: Inputs) -> Work | None:
        sizes = self.sizes(inputs)
        return None if sizes is None else _product_call(name, inputs, sizes, self.first)


class MovedModel(OperatorModel):
    """An operator that memory limits: it reads each tensor that it is given, and writes results of
    the size of some of them."""

    results: Sequence[int] = (0,)
    """For each result the position of a tensor that has its size and type."""

    def work(self, name: str, inputs: Inputs) -> Work | None:
        places = [place for place, shape in enumerate(inputs.shapes) if shape]
        size = sum(inputs.tensor_bytes(place) for place in (*places, *self.results))
        if not places or isnan(size):
            return None
        sizes = dict.fromkeys("x".join(map(str, inputs.distinct(place))) for place in places)
        shape = Moved(" ".join(sizes))
        return Work(CallShape(name, shape, inputs.types_text(*places), bytes=size))


class AttentionModel(OperatorModel):
    """Attention of PyTorch, flash-attn and AITER, forward and backward."""

    def matches(self, name: str) -> bool:
        return ATTENTION.search(name) is not None

    def work(self, name: str, inputs: Inputs) -> Work | None:
        return _attention(name, inputs)


class FusedModel(OperatorModel):
    """Kernels that torch.compile fuses, by the operators in their names."""

    def matches(self, name: str) -> bool:
        return FUSED.match(name) is not None

    def work(self, name: str, inputs: Inputs) -> Work | None:
        fused = FUSED.match(name)
        return fused and _fused(fused["kind"], fused["operators"], inputs)


class CountedModel(OperatorModel):
    """Products and convolutions, each with the places of its operands (`_COUNTS`)."""

    def matches(self, name: str) -> bool:
        return name in _COUNTS

    def work(self, name: str, inputs: Inputs) -> Work | None:
        return _COUNTS[name](name, inputs)


class MemoryModel(OperatorModel):
    """Operators that memory limits, by the tensors that they read and write."""

    def matches(self, name: str) -> bool:
        return traffic_of(name) is not None

    def work(self, name: str, inputs: Inputs) -> Work | None:
        found = moved_elements(name, inputs)
        return Work(found[0], untyped=found[1]) if found else None


MODELS: Final = (AttentionModel(), FusedModel(), CountedModel(), MemoryModel())
"""The first one that matches counts."""
_OWN_NAMESPACES: Final = (
    *("aten", "autograd", "c10", "c10d", "distributeddataparallel", "fsdp", "inductor", "nccl"),
    *("prim", "profiler", "torch"),
)
"""Operators of PyTorch itself; to look for plugins takes time that no other trace should take."""


def model_of(name: str) -> OperatorModel | None:
    """The model of an operator: Chopper's own, else that of a plugin."""
    own = next((each for each in MODELS if each.matches(name)), None)
    namespace, colons, _ = name.partition("::")
    if own is not None or not colons or " " in namespace:
        return own
    if namespace.partition(".")[0].lower() in _OWN_NAMESPACES:
        return None
    return next((each for each in _plugin_models() if each.matches(name)), None)


@cache
def _plugin_models() -> tuple[OperatorModel, ...]:
    """The models of plugins; one that fails tells no work, and is a problem to report."""
    found = []
    for plugin, made in plugins.loaded("operators", ("matches", "work")):
        if (model := plugin.attempt(made, None)) is not None:
            found.append(_GuardedModel(plugin, model))
    return tuple(found)


class _GuardedModel(OperatorModel):
    def __init__(self, plugin: Plugin, model: OperatorModel) -> None:
        self._plugin, self._model = plugin, model

    def matches(self, name: str) -> bool:
        return self._plugin.attempt(self._model.matches, False, name)

    def work(self, name: str, inputs: Inputs) -> Work | None:
        return self._plugin.attempt(self._model.work, None, name, inputs)


def has_model(name: str) -> bool:
    """Whether the inputs of an operator of the name tell its work."""
    return model_of(name) is not None


def operator_work(name: str, inputs: Inputs) -> Work | None:
    model = model_of(name)
    return None if model is None else model.work(name, inputs)


def _known(amount: float) -> float | None:
    return None if isnan(amount) else amount


def _product_call(
    name: str,
    inputs: Inputs,
    sizes: Product,
    first: int = 0,
    dtype: int | None = None,
    result: str = "",
) -> Work:
    """The call of a product whose operands begin at `first`.

    The type of its result is that of the input `dtype`, else `result`, else the operand's.
    """
    places = (first, first + 1)
    element = inputs.type_of(*places)
    # PyTorch packs two FP4 values along the inner dimension and counts the pairs.
    if element == ElementType.FP4:
        sizes = replace(sizes, k=2 * sizes.k)
    result = result or inputs.spelling(first)
    if dtype is not None:
        result = inputs.scalar_type(dtype, result)
    operands, produced = inputs.types_text(*places), type_text(result)
    elements = sizes.batch * sizes.m * sizes.n * (sizes.groups if sizes.split == "k" else 1)
    read = sum(inputs.tensor_bytes(place) for place in range(len(inputs.shapes)))
    return Work(
        CallShape(
            name,
            sizes,
            operands,
            produced if produced != operands else "",
            element,
            2.0 * sizes.batch * sizes.m * sizes.n * sizes.k,
            _known(read + bytes_of(elements, result)),
        )
    )


def _product(
    name: str,
    inputs: Inputs,
    first: int = 0,
    directions: int = 0,
    dtype: int | None = None,
    result: str = "",
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
    if not again:
        # PyTorch folds the batch of the first operand into its rows.
        times, rows = 1, times * rows
    layout = _layout(inputs.is_transposed(first + 1), inputs.is_transposed(first))
    has_bias = first > 0 and bool(inputs.shapes[0])
    sizes = Product(rows, columns, inner, times, layout, has_bias)
    return _product_call(name, inputs, sizes, first, dtype, result)


def _layout(second: bool | None, first: bool | None) -> str:
    if second is None or first is None:
        return ""
    return "NT"[second] + "NT"[first]


def _linear(name: str, inputs: Inputs, given: int = 0, weight: int = 1) -> Work | None:
    """The product of the input with the transposed weight, which are at two positions."""
    if len(inputs.shapes) < 2 or not inputs.shapes[given] or len(inputs.shapes[weight]) != 2:
        return None
    *rows, inner = inputs.shapes[given]
    columns, again = inputs.shapes[weight]
    if inner != again:
        return None
    is_turned = inputs.is_transposed(weight)
    layout = _layout(
        None if is_turned is None else not is_turned,
        inputs.is_transposed(given) if rows else False,
    )
    has_bias = len(inputs.shapes) > 2 and bool(inputs.shapes[2])
    sizes = Product(prod(rows), columns, inner, layout=layout, has_bias=has_bias)
    return _product_call(name, inputs, sizes)


def _product_into(name: str, inputs: Inputs) -> Work | None:
    """The product of the second and third input; the first is where it is written."""
    read = Inputs(inputs.shapes[1:], inputs.types[1:], inputs.values[1:], inputs.strides[1:])
    return _product(name, read, directions=2, result=inputs.spelling(0))


def _grouped(name: str, inputs: Inputs, offsets: int, dtype: int, result: str = "") -> Work | None:
    """Products of matrices whose rows, columns or inner size are split among groups."""
    if len(inputs.shapes) <= offsets:
        return None
    first, second = inputs.shapes[:2]
    ends = inputs.shapes[offsets]
    match len(first), len(second):
        case 2, 3 if first[1] == second[1]:
            sizes = Product(first[0], second[2], first[1], groups=second[0], split="m")
        case 3, 2 if first[2] == second[0]:
            sizes = Product(first[1], second[1], first[2], groups=first[0], split="n")
        case 2, 2 if first[1] == second[0] and len(ends) == 1:
            sizes = Product(first[0], second[1], first[1], groups=ends[0], split="k")
        case 3, 3 if first[0] == second[0] and first[2] == second[1]:
            sizes = Product(first[1], second[2], first[2], batch=first[0])
        case _:
            return None
    layout = _layout(inputs.is_transposed(1), inputs.is_transposed(0))
    return _product_call(name, inputs, replace(sizes, layout=layout), 0, dtype, result)


def _attention(name: str, inputs: Inputs) -> Work | None:
    is_backward = bool(_BACKWARD.search(name))
    places = (1, 2, 3) if is_backward else (0, 1, 2)
    if len(inputs.shapes) <= places[-1]:
        return None
    query, key, value = (inputs.shapes[place] for place in places)
    if PACKED.search(name):
        query, key, value = _unpacked(name, inputs, query, key, value)
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
        bytes=_known(bytes_of(elements, inputs.spelling(places[0]))),
    )  # fmt: skip
    open_mask = Work(call, dense=2.0 * rows * key[sequence] * widths)
    causal, window = _mask(name, inputs.values)
    if window:
        sizes = replace(call.sizes, window=window)
        open_mask = replace(open_mask, call=replace(call, sizes=sizes))
    if causal is None and (query[sequence] == 1 or _has_mask(name, inputs.shapes)):
        causal = False
    return open_mask if causal is None else open_mask.masked(causal)


def _unpacked(name: str, inputs: Inputs, *packed: Shape) -> Sequence[Shape]:
    """Query, key and value of sequences packed in one dimension, by sequence; empty if unknown.

    Inputs are the tensors, where each sequence begins, and the longest lengths. Lengths are known
    if all are the longest. Keys of pages may be of other requests; a causal mask needs at least as
    many keys as queries.
    """
    places = range(len(inputs.types))
    starts = next((at for at in places if inputs.types[at] == "int" and inputs.shapes[at]), 0)
    longest = [each for at in places[starts:] if type(each := inputs.value(at)) is int][:2]
    if not starts or len(longest) < 2 or set(map(len, packed)) != {3}:
        return [], [], []
    count, (query, *_) = inputs.shapes[starts][0] - 1, packed
    is_paged = name.endswith("batch_prefill")
    has_keys = not is_paged and packed[1][0] == count * longest[1]
    has_keys |= longest[0] == longest[1] and _mask(name, inputs.values)[0] is True
    if query[0] != count * longest[0] or not (has_keys or count == 1):
        return [], [], []
    lengths = (longest[0], longest[1], longest[1])
    return [[count, own, *shape[1:]] for own, shape in zip(lengths, packed, strict=True)]


def causal_in(kernel: str) -> bool | None:
    """Whether a kernel's name says that its attention is causal; None if unclear."""
    if not has_any(kernel, MASK_WORDS):
        return None
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


def _mask(name: str, values: Sequence[str]) -> tuple[bool | None, int]:
    """Whether attention is causal, and its window.

    In every schema it is the first boolean after the dropout, the first float; but AITER's for
    packed sequences have another one before it. FlashAttention's have the window after it.
    """
    rest = iter(values)
    if not any(_NUMBER_WITH_POINT.fullmatch(text) for text in rest):
        return None, 0
    left = list(rest)
    places = [at for at, text in enumerate(left) if text.lower() in ("true", "false")]
    places = places[name.startswith("aiter") and PACKED.search(name) is not None :][:1]
    for at in places:
        window = left[at + 1] if at + 1 < len(left) and HEADS_AFTER_SEQUENCE.search(name) else ""
        return left[at].lower() == "true", int(window) if window.isdecimal() else 0
    return None, 0


def _fused(kind: str, operators: str, inputs: Inputs) -> Work:
    """A fused kernel: what it reads and writes; the trace doesn't show how it computes."""
    places = [place for place, shape in enumerate(inputs.shapes) if shape]
    size = sum(inputs.tensor_bytes(place) for place in places)
    return Work(
        CallShape(
            f"triton {kind}",
            Fused(operators.strip("_"), tuple(tuple(inputs.shapes[place]) for place in places)),
            inputs.types_text(*places),
            bytes=_known(size) if places else None,
        )
    )


_GRADIENTS: Final = {(True, True): "both", (True, False): "input", (False, True): "weight"}


def _convolution(name: str, inputs: Inputs, places: Sequence[int]) -> Work | None:
    sizes = _convolution_sizes(inputs, 0, places)
    if sizes is None:
        return None
    output, filters = _output(sizes, inputs), sizes.weight[0]
    windows: Sequence[int] = output
    if sizes.is_transposed:
        windows, filters = sizes.image[2:], sizes.weight[1] * sizes.groups
    if not windows:
        return None
    written = prod((sizes.image[0], filters, *output))
    size = inputs.tensor_bytes(0) if inputs.types else nan
    size += inputs.tensor_bytes(1) + (bytes_of(written, inputs.spelling(0)) if output else nan)
    if name != "aten::cudnn_convolution":
        size += inputs.tensor_bytes(2)
    return Work(
        CallShape(
            name,
            sizes,
            inputs.types_text(0, 1),
            element=inputs.type_of(0, 1),
            flops=_per_window(sizes, windows),
            bytes=_known(size),
        )
    )


def _convolution_backward(name: str, inputs: Inputs) -> Work | None:
    """Inputs: gradient of the output, image, weight; 10: the gradients wanted."""
    sizes, wanted = _convolution_sizes(inputs, 1, (4, 5, 6, 9, 7)), inputs.value(10)
    if sizes is None or not isinstance(wanted, list):
        return None
    output, gradients = inputs.shapes[0], tuple(map(bool, wanted[:2]))
    if len(output) != len(sizes.image) or not any(gradients):
        return None
    parts = sum(gradients)
    # Either gradient takes kernels of its own, which read two of the three and write one.
    each = sum(inputs.tensor_bytes(place) for place in range(3)) if inputs.types else nan
    windows = sizes.image[2:] if sizes.is_transposed else output[2:]
    call = CallShape(
        name,
        replace(sizes, gradients=_GRADIENTS[gradients[0], gradients[1]]),
        inputs.types_text(0, 2),
        element=inputs.type_of(0, 2),
        flops=parts * _per_window(sizes, windows),
        bytes=_known(parts * each),
    )
    return Work(call, parts)


def _convolution_sizes(inputs: Inputs, first: int, places: Sequence[int]) -> Convolution | None:
    """Of the image at `first` and the weight after it; unknown steps are empty.

    `places` are those of stride, padding, dilation, groups, and transposed if it is an input.
    """
    image, weight = [*inputs.shapes[first : first + 2], [], []][:2]
    *steps, groups, transposed = (*(inputs.value(place) for place in places), False)[:5]
    if transposed is None or not 3 <= len(image) == len(weight):
        return None
    stride, padding, dilation = (_per_direction(step, len(image) - 2) for step in steps)
    count = groups if isinstance(groups, int) else 1
    return Convolution(
        tuple(image), tuple(weight), stride, padding, dilation, count, bool(transposed)
    )


def _per_window(sizes: Convolution, windows: Sequence[int]) -> float:
    """A multiply and an add for each window position and element of the weight."""
    return 2.0 * sizes.image[0] * prod(windows) * prod(sizes.weight)


def _output(sizes: Convolution, inputs: Inputs) -> Shape:
    """The output's size in each direction; empty where a step is unknown."""
    steps = (sizes.stride, sizes.padding, sizes.dilation)
    image, kernel = sizes.image[2:], sizes.weight[2:]
    # Only a transposed one has padding of its output.
    has_groups = isinstance(inputs.value(8), int)
    extra = _per_direction(inputs.value(7) if has_groups else None, len(image))
    if not all(steps) or min(sizes.stride) < 1 or (sizes.is_transposed and not extra):
        return []
    if sizes.is_transposed:
        return [
            (size - 1) * stride - 2 * padding + dilation * (taps - 1) + more + 1
            for size, taps, stride, padding, dilation, more in zip(
                image, kernel, *steps, extra, strict=True
            )
        ]
    return [
        max(0, (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1)
        for size, taps, stride, padding, dilation in zip(image, kernel, *steps, strict=True)
    ]


def _per_direction(value: Any, directions: int) -> tuple[int, ...]:
    numbers = tuple(plain_shape(value))
    if len(numbers) == 1:
        return numbers * directions
    return numbers if len(numbers) == directions else ()


_COUNTS: Final[Mapping[str, Callable[[str, Inputs], Work | None]]] = {
    "aten::mm": partial(_product, directions=2),
    "aten::addmm": partial(_product, first=1, directions=2),
    "aten::_addmm_activation": partial(_product, first=1, directions=2),
    "aten::_scaled_mm": partial(_product, directions=2, dtype=6),
    "aten::_int_mm": partial(_product, directions=2, result="int"),
    "aten::bmm": partial(_product, directions=3),
    "aten::baddbmm": partial(_product, first=1, directions=3),
    "aten::linear": _linear,
    "vllm::rocm_unquantized_gemm": _linear,
    "vllm::rocm_unquantized_gemm_impl": _linear,
    "_rocm_C::wvSplitK": partial(_linear, given=1, weight=0),
    "_rocm_C::LLMM1": partial(_linear, given=1, weight=0),
    "_C::cutlass_scaled_mm": _product_into,
    "sgl_kernel::fp8_scaled_mm": partial(_product, directions=2, dtype=4),
    "aten::matmul": _product,
    "aten::_grouped_mm": partial(_grouped, offsets=2, dtype=4),
    "aten::_scaled_grouped_mm": partial(_grouped, offsets=4, dtype=7, result="c10::BFloat16"),
    "aten::convolution_backward": _convolution_backward,
    "aten::convolution": partial(_convolution, places=(3, 4, 5, 8, 6)),
    "aten::_convolution": partial(_convolution, places=(3, 4, 5, 8, 6)),
    "aten::conv1d": partial(_convolution, places=(3, 4, 5, 6)),
    "aten::conv2d": partial(_convolution, places=(3, 4, 5, 6)),
    "aten::conv3d": partial(_convolution, places=(3, 4, 5, 6)),
    "aten::cudnn_convolution": partial(_convolution, places=(3, 2, 4, 5)),
    "aten::miopen_convolution": partial(_convolution, places=(4, 3, 5, 6)),
    "aten::miopen_depthwise_convolution": partial(_convolution, places=(4, 3, 5, 6)),
}
