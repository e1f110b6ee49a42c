"""The types of the elements that products are made of: each has its own peak on a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum
from typing import Final


class ElementType(IntEnum):
    """A type of elements; `text` is its name in `hardware.toml` and for people."""

    UNKNOWN = 0
    FP64 = 1
    FP32 = 2
    TF32 = 3
    FP16 = 4
    BF16 = 5
    FP8 = 6
    INT8 = 7
    FP4 = 8

    @property
    def text(self) -> str:
        """Its name in lower case."""
        return self.name.lower()


_SPELLINGS: Final = {
    "double": ElementType.FP64,
    "float": ElementType.FP32,
    "half": ElementType.FP16,
    "bfloat16": ElementType.BF16,
    "float8_e4m3fn": ElementType.FP8,
    "float8_e4m3fnuz": ElementType.FP8,
    "float8_e5m2": ElementType.FP8,
    "float8_e5m2fnuz": ElementType.FP8,
    "float4_e2m1fn_x2": ElementType.FP4,
    "signedchar": ElementType.INT8,
    "unsignedchar": ElementType.INT8,
}
_NAMESPACE: Final = re.compile(r"^(?:c10|at)::|\s+")
_SAYS_TF32: Final = re.compile(r"tf32", re.IGNORECASE)


def element_type(spellings: Iterable[str]) -> ElementType:
    """The type that PyTorch spells so for each of some tensors, UNKNOWN where they differ."""
    found = {
        _SPELLINGS.get(_NAMESPACE.sub("", text).lower(), ElementType.UNKNOWN) for text in spellings
    }
    return found.pop() if len(found) == 1 else ElementType.UNKNOWN


def says_tf32(kernel: str) -> bool:
    """Whether a kernel's name says that it computes in TF32, which its operands do not tell."""
    return _SAYS_TF32.search(kernel) is not None
