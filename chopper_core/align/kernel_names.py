"""What the name of a kernel says: its kind, its class, and for collectives which one it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from chopper_core.model.table import Category, Kind
from chopper_core.util.arrays import Int8, Int32
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
    """The standard name of a collective that a text (argument, range, kernel) speaks of."""
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
