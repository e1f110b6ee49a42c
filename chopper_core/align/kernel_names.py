"""Kind, class and collective of a kernel by its name; names compared across tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from chopper_core.model.table import Category, Kind
from chopper_core.util.arrays import Int8, Int32, Int64
from chopper_core.util.grouping import distinct

UNKNOWN_COLLECTIVE: Final = "collective"
OPTIMIZER_CLASS: Final = "optimizer"
ATTENTION_CLASS: Final = "attention"
_COMM: Final = re.compile(
    r"^(?:nccl|rccl)(?:Dev)?Kernel|msccl|mscclpp|rocshmem|nvshmem|deep_ep"
    r"|(?:cross_device|custom|quick)_(?:all_?)?reduce|all_?reduce\w*kernel",
    re.IGNORECASE,
)
_CLASSES: Final = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        (
            ATTENTION_CLASS,
            r"fmha|attn_fwd|attn_bwd|bwd_kernel_d[kq]|mha_(?:fwd|bwd)|flash|bwd_preprocess"
            r"|scaled_dot_product|^_fwd_kernel|paged_attention",
        ),
        ("copy", r"multi_tensor_apply.*[Cc]opy"),
        ("gemm", r"^Cijk_|gemm|nvjet|cutlass|hipblaslt|xmma|scaled_mm|matmul|gemv|^wvSplitK"),
        ("convolution", r"conv(?!ert)|implicit_?gemm|winograd|im2col|miopen.*igemm|igemm_"),
        (OPTIMIZER_CLASS, r"multi_tensor_apply|fused_?adam|adamw?_kernel|\blamb\b"),
        ("norm", r"rms_?norm|layer_?norm|batch_?norm|group_?norm|bnorm|RowwiseMoments"),
        ("rope", r"\brope\b|rope_|rotary"),
        ("softmax", r"softmax|nll|cross_?entropy|log_softmax"),
        ("embedding", r"embedding|index_?select|index_?put|gather_kernel|scatter"),
        ("pooling", r"pool"),
        (
            "copy",
            r"copyBuffer|fillBuffer|Memcpy|Memset|CatArray|split_with_sizes|chunk_cat|copy_kernel"
            r"|direct_copy|transpose|permute",
        ),
        ("reduction", r"reduce_kernel|triton_(?:red|per)_|reduction"),
        ("random", r"distribution_|philox|dropout"),
        ("sort", r"sort|topk|radix|scan|cub::|rocprim"),
        ("elementwise", r"elementwise|triton_poi_|pointwise|tensor_apply|foreach|\bfill"),
    )
)
_COLLECTIVES: Final = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("all_gather", r"all_?gather"),
        ("reduce_scatter", r"reduce_?scatter|post_backward_reduce"),
        ("all_reduce", r"all_?reduce"),
        ("all_to_all", r"all_?to_?all|all2all"),
        ("broadcast", r"broadcast"),
        ("send_recv", r"send_?recv|\b(?:i?send|i?recv|batch_isend_irecv|coalesced)\b|:send|:recv"),
        ("barrier", r"barrier"),
        ("gather", r"\bgather"),
        ("scatter", r"\bscatter"),
        ("reduce", r"reduce"),
    )
)


def collective_name(text: str) -> str | None:
    """The standard name of the collective in a text (argument, range, kernel)."""
    for name, pattern in _COLLECTIVES:
        if pattern.search(text):
            return name
    return None


def is_communication(name: str) -> bool:
    """Whether a kernel communicates between GPUs."""
    return _COMM.search(name) is not None


@lru_cache(maxsize=1 << 14)
def kernel_class(name: str) -> str:
    """The class of a kernel by its name: `gemm`, `attention`, `elementwise` …, else `other`."""
    if is_communication(name):
        return collective_name(name) or UNKNOWN_COLLECTIVE
    for kind, pattern in _CLASSES:
        if pattern.search(name):
            return kind
    return "other"


def kinds(names: Sequence[str], name: Int32, category: Int8) -> Int8:
    """The kind of each activity; memset counts as compute."""
    used = distinct(name)
    communicates = np.zeros(len(names), np.bool_)
    communicates[used] = [is_communication(names[code]) for code in used]
    kind = np.where(communicates[name], Kind.COMM, Kind.COMPUTE)
    kind[category == Category.MEMCPY] = Kind.COPY
    kind[category == Category.MEMSET] = Kind.COMPUTE
    return kind.astype(np.int8)


_ENOUGH_NAMES: Final = 0.9
"""Share of dispatches with names in the trace at which a comparison is accepted."""
_MIN_PREFIX: Final = 6
"""Shorter names are prefixes of too many others."""
_CLONE: Final = re.compile(r"(?:\s*\[clone[^\]]*\]|\s*\(\.kd\)|\.kd)+$")
_QUALIFIERS: Final = re.compile(r"^(?:void|static|__global__)\s+")


def plain_name(name: str) -> str:
    """A kernel's name without tool suffixes and return type."""
    return _QUALIFIERS.sub("", _CLONE.sub("", name.strip()))


def base_name(name: str) -> str:
    """The last part of a kernel's name before its template and call parameters."""
    name = re.sub(r"\(anonymous namespace\)::", "", plain_name(name))
    return re.split(r"[<(]", name, maxsplit=1)[0].rsplit("::", 1)[-1]


def common_codes(
    trace_names: Sequence[str],
    trace_name: Int32,
    dispatch_names: Sequence[str],
    dispatch_name: Int32,
) -> tuple[Int64, Int64, str]:
    """Codes of both sides, equal where the names mean the same kernel, and the comparison."""
    trace_used = np.unique(trace_name).tolist()
    dispatch_used = np.unique(dispatch_name).tolist()
    weight = np.bincount(dispatch_name, minlength=len(dispatch_names))

    def shortened(names: Sequence[str], used: list[int]) -> Callable[[str], str]:
        cuts = sorted({plain_name(names[code]) for code in used}, key=len)

        def cut(name: str) -> str:
            plain = plain_name(name)
            return next((c for c in cuts if len(c) >= _MIN_PREFIX and plain.startswith(c)), plain)

        return cut

    ways: list[tuple[str, Callable[[str], str]]] = [
        ("exact", plain_name),
        ("prefix", shortened(dispatch_names, dispatch_used)),
        ("base name", base_name),
    ]
    compared = []
    for title, way in ways:
        codes: dict[str, int] = {}
        of_trace = np.full(len(trace_names), -1, np.int64)
        for code in trace_used:
            of_trace[code] = codes.setdefault(way(trace_names[code]), len(codes))
        in_trace = len(codes)
        of_dispatch = np.full(len(dispatch_names), -2, np.int64)
        for code in dispatch_used:
            of_dispatch[code] = codes.setdefault(way(dispatch_names[code]), len(codes))
        known = (of_dispatch >= 0) & (of_dispatch < in_trace)
        found = float(weight[known].sum()) / max(float(weight.sum()), 1.0)
        compared.append((found, of_trace[trace_name], of_dispatch[dispatch_name], title))
        if found >= _ENOUGH_NAMES:
            break
    _, trace_codes, dispatch_codes, title = max(compared, key=lambda way: way[0])
    return trace_codes, dispatch_codes, title
