"""Shapes of operator calls: sizes, layouts and types, with the work that follows from them.

A call's FLOPs are those of `align/operator_work`. Its modelled bytes count each operand once: every
tensor that the operator reads or writes, at the size of its type. docs/shapes.md has the formulas.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.hardware import ElementType

MIXED: Final = ","
"""Between the types of operands that differ."""


class Product(Struct, frozen=True, tag="product"):
    """A matrix product: (m, k) x (k, n) for each of a batch."""

    m: int
    n: int
    k: int
    batch: int = 1
    layout: str = ""
    """The letters that a BLAS takes in column-major order, as kernels' names have them: that of
    the second operand (n, k), then that of the first; T is transposed. Empty: strides unknown."""
    has_bias: bool = False
    groups: int = 0
    """Products of a grouped one, which split the size in `split` among them; 0: not grouped."""
    split: str = ""

    @property
    def text(self) -> str:
        """Its sizes: `8944x2816x1024 TN`."""
        parts = [f"b{self.batch}"] if self.batch != 1 else []
        parts += [f"g{self.groups} over {self.split}"] if self.groups > 0 else []
        parts += [f"{self.m}x{self.n}x{self.k}", self.layout, "bias" if self.has_bias else ""]
        return " ".join(filter(None, parts))


class Convolution(Struct, frozen=True, tag="convolution"):
    """A convolution of images (batch, channels, sizes) with weights (filters, ...)."""

    image: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    is_transposed: bool = False
    gradients: str = ""
    """Empty: forward; else what backward computes: `input`, `weight` or `both`."""

    @property
    def text(self) -> str:
        """Its sizes: `256x3x32x32 k64x3x7x7 s2 p3`; factors of 1, and padding of 0, are left
        out.
        """
        parts = [
            "transposed" if self.is_transposed else "",
            _by(self.image),
            "k" + _by(self.weight),
        ]
        for letter, sizes, usual in (
            ("s", self.stride, 1),
            ("p", self.padding, 0),
            ("d", self.dilation, 1),
        ):
            if any(size != usual for size in sizes):
                parts.append(letter + (str(sizes[0]) if len(set(sizes)) == 1 else _by(sizes)))
        parts += [f"g{self.groups}"] if self.groups != 1 else []
        return " ".join(filter(None, parts))


class Attention(Struct, frozen=True, tag="attention"):
    """Scaled dot-product attention."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    value_width: int
    is_causal: bool = False
    is_backward: bool = False
    window: int = 0
    """Keys before its own that a query of a causal one attends to; 0: all."""

    @property
    def text(self) -> str:
        """Its sizes: `b16 h32/8 s4096 d128 causal`; keys' heads and lengths only where they
        differ."""
        parts = [
            f"b{self.batch}",
            f"h{_pair(self.heads, self.key_heads)}",
            f"s{_pair(self.queries, self.keys)}",
            f"d{_pair(self.width, self.value_width)}",
        ]
        parts += (["causal"] if self.is_causal else []) + (
            [f"w{self.window}"] if self.window > 0 else []
        )
        return " ".join(parts)


class Fused(Struct, frozen=True, tag="fused"):
    """A kernel that a compiler fused from operators, with the tensors that it reads and writes."""

    operators: str
    """As its name has them: `add_mul_silu`."""
    tensors: tuple[tuple[int, ...], ...]

    @property
    def text(self) -> str:
        """Its operators and the sizes of its tensors, equal ones once."""
        sizes = dict.fromkeys(_by(tensor) for tensor in self.tensors if tensor)
        return " ".join((self.operators, *sizes)).strip()


class Moved(Struct, frozen=True, tag="moved"):
    """The tensors of an operator that memory limits."""

    text: str
    """Their sizes, equal ones once, and the elements of a result of another size."""


Sizes = Product | Convolution | Attention | Fused | Moved


class CallShape(Struct, frozen=True):
    """The shape of an operator's call, and its modelled work."""

    operator: str
    """As the trace names it: `aten::mm`."""
    sizes: Sizes
    operands: str = ""
    """The type of the operands: `bf16`, or those of both: `fp16,fp32`; empty if unknown."""
    result: str = ""
    """The type of the result where it differs from that of the operands."""
    element: int = ElementType.UNKNOWN
    """The common `ElementType` of the operands."""
    flops: float | None = None
    """Of the whole call; None without a model."""
    bytes: float | None = None
    """Of the whole call; None where a type is unknown."""

    @property
    def family(self) -> str:
        """The operator's short name: `mm`, `conv bwd`, `attention`, `triton poi` …"""
        match self.sizes:
            case Convolution(gradients=""):
                return "conv"
            case Convolution(gradients=gradients):
                return {"input": "conv dgrad", "weight": "conv wgrad"}.get(gradients, "conv bwd")
            case Attention(is_backward=is_backward):
                return "attention bwd" if is_backward else "attention"
            case _:
                return self.operator.rpartition("::")[2]

    @property
    def label(self) -> str:
        """A unique one-line label of the shape: `mm 8944x2816x1024 TN bf16`."""
        types = f"{self.operands}->{self.result}" if self.result else self.operands
        return " ".join(filter(None, (self.family, self.sizes.text, types)))

    def as_backward(self, per_forward: float) -> CallShape:
        """The backward of an attention whose own inputs the trace lacks."""
        assert isinstance(self.sizes, Attention)
        return replace(
            self,
            operator=f"{self.operator} (backward)",
            sizes=replace(self.sizes, is_backward=True),
            flops=None if self.flops is None else self.flops * per_forward,
            bytes=None if self.bytes is None else 2.0 * self.bytes,
        )


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _pair(first: int, second: int) -> str:
    return str(first) if first == second else f"{first}/{second}"
