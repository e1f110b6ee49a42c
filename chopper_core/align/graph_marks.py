"""Layers and operations of a graph's kernels, by what their nodes were marked with.

A mark is the path of a module, such as `layers.3.attention.wq`, or any other name. A path names the
layer, and its last parts the operation: the standard one where they are usual names of a language
model's modules, else themselves.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from chopper_core.align.host import Host
from chopper_core.model.table import NO_LABEL
from chopper_core.util.arrays import Int32
from chopper_core.util.patterns import late
from chopper_core.work.kernel_classes import ATTENTION_CLASS

_INDEX: Final = late(r"\[(\d{1,9})\]")
_QUOTED: Final = late(r"\[['\"](\w+)['\"]\]")
_LAYER: Final = late(r"(?:^|\.)(?:layers|blocks|h|block|layer)\.(\d{1,9})(?:\.|$)")
_ATTENTION: Final = late(r"(?:^|\.)(?:self_?)?att(?:entio)?n\w*$", re.IGNORECASE)
_PARTS: Final = (
    (r"(?:tok|word)_embeddings?|embed_tokens|wte", "ie"),
    (r"attention_norm|input_layernorm|attn_norm|ln_1", "attn_n"),
    (r"ffn_norm|post_attention_layernorm|mlp_norm|ln_2", "mlp_n"),
    (r"wqkv|qkv_proj|query_key_value|c_attn|in_proj|qkv", "qkv_ip"),
    (r"wq|q_proj|query", "q_ip"),
    (r"wk|k_proj|key", "k_ip"),
    (r"wv|v_proj|value", "v_ip"),
    (r"wo|o_proj", "attn_op"),
    (r"w1|gate_proj", "mlp_gp"),
    (r"w3|up_proj|c_fc", "mlp_up"),
    (r"gate_up_proj", "mlp_gup"),
    (r"w2|down_proj", "mlp_dp"),
    (r"(?:model\.)?(?:norm|ln_f|final_layernorm)", "ln"),
    (r"(?:model\.)?(?:output|lm_head)", "lp"),
)
"""The end of a path, and the operation; the last two outside of layers."""
_OUTSIDE: Final = ("ln", "lp")


def layer_of(mark: str) -> int:
    """The layer that a path names; NO_LABEL for none."""
    match = _LAYER.search(_plain(mark))
    return int(match[1]) if match else NO_LABEL


def operation_of(mark: str, *, attends: bool) -> str:
    """The operation of a kernel with a mark, which may be one of an attention."""
    path = _plain(mark)
    match = _LAYER.search(path)
    inner = path[match.end() :] if match else path
    if attends and (not match or _ATTENTION.search(inner)):
        return "attn_fa"
    for pattern, name in _PARTS:
        if name in _OUTSIDE:
            if not match and re.fullmatch(pattern, inner):
                return name
        elif re.search(rf"(?:^|\.)(?:{pattern})$", inner):
            return name
    return inner


def _plain(mark: str) -> str:
    """A path with points alone: `L['self'].model.layers[3]` is `L.self.model.layers.3`."""
    return _QUOTED.sub(r".\1", _INDEX.sub(r".\1", mark.strip()))


def marked_layers(host: Host) -> Int32:
    """The layer of each activity by its mark, NO_LABEL without one."""
    layers = [*map(layer_of, host.trace.annotations), NO_LABEL]
    return np.array(layers, np.int32)[host.trace.activities.annotation]


def marked_operations(host: Host) -> tuple[Int32, list[str]]:
    """The operation of each activity by its mark, NO_LABEL without one, and the names of codes."""
    activities, names = host.trace.activities, dict[str, int]()
    codes = np.full(len(activities), NO_LABEL, np.int32)
    if not host.trace.annotations:
        return codes, []
    attends = host.of_class(ATTENTION_CLASS)
    for code, mark in enumerate(host.trace.annotations):
        for is_attention in (False, True):
            own = (activities.annotation == code) & (attends == is_attention)
            if own.any() and (name := operation_of(mark, attends=is_attention)):
                codes[own] = names.setdefault(name, len(names))
    return codes, list(names)
