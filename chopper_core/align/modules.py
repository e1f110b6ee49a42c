"""What the frames of `nn.Module` calls say: the layer and the operation of each module."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.host import Host
from chopper_core.align.intervals import Intervals, parents
from chopper_core.model.table import NO_LABEL
from chopper_core.util.arrays import Index

_FRAME: Final = re.compile(r"^nn\.Module: (?P<class>.+)_(?P<number>\d{1,9})$")
_BLOCK: Final = re.compile(r"(?:DecoderLayer|TransformerBlock|Block|EncoderLayer|Layer)$")
_ATTENTION: Final = re.compile(r"attn|attention", re.IGNORECASE)
_FEED_FORWARD: Final = re.compile(r"mlp|ffn|feed_?forward", re.IGNORECASE)
_LINEAR: Final = re.compile(r"linear|conv1d", re.IGNORECASE)
_NORM: Final = re.compile(r"norm", re.IGNORECASE)
_EMBEDDING: Final = re.compile(r"^(?:\w*Token)?Embedding$")
_ACTIVATION: Final = re.compile(r"silu|gelu|relu|swish", re.IGNORECASE)

_ATTENTION_LINEARS: Final = {
    4: ("q_ip", "k_ip", "v_ip", "attn_op"),
    3: ("q_ip", "kv_ip", "attn_op"),
    2: ("qkv_ip", "attn_op"),
}
_FEED_FORWARD_LINEARS: Final = {3: ("mlp_gp", "mlp_up", "mlp_dp"), 2: ("mlp_up", "mlp_dp")}
_LAYER_NORMS: Final = {2: ("attn_n", "mlp_n"), 1: ("attn_n",)}


class Modules(Struct, frozen=True):
    """The module frames as intervals, valued with the layer and with the operation."""

    layers: Intervals
    operations: Intervals
    """Values point into `operation_names`; only leaves and modules with own work are here."""
    operation_names: tuple[str, ...]


def read_modules(host: Host) -> Modules:
    """The layers and operations of a trace's modules.

    A module's number counts the instances of its class in the order of their first call, so the
    number of a block is its layer. The order of the projections inside attention and
    feed-forward modules tells which is which.
    """
    rows = host.modules
    frames = [_FRAME.match(host.text(row)) for row in rows]
    instances = [host.text(row).removeprefix("nn.Module: ") for row in rows]
    classes = [
        frame["class"] if frame else instance
        for frame, instance in zip(frames, instances, strict=True)
    ]
    parent = parents(host.intervals(rows))
    blocks = _block_class(classes, instances)
    layer_rows = [position for position, name in enumerate(classes) if name == blocks]
    layer_numbers = [int(frame["number"]) for p in layer_rows if (frame := frames[p])]
    layers = host.intervals(rows[layer_rows], np.array(layer_numbers, np.intp))

    roles = _roles(classes, instances, parent, blocks)
    names = {name: code for code, name in enumerate(dict.fromkeys(roles.values()))}
    codes = np.array([names[roles[instance]] for instance in instances], np.intp)
    return Modules(layers, host.intervals(rows, codes), tuple(names))


def _block_class(classes: list[str], instances: list[str]) -> str:
    """The class whose instances are the layers: the most numerous one that is named like one."""
    numbers = Counter(name for name, _ in set(zip(classes, instances, strict=True)))
    candidates = [(count, name) for name, count in numbers.items() if _BLOCK.search(name)]
    return max(candidates, default=(0, ""))[1]


def _roles(classes: list[str], instances: list[str], parent: Index, blocks: str) -> dict[str, str]:
    """The operation of each module instance: a standard name where its place tells it."""
    class_of = dict(zip(instances, classes, strict=True))
    parent_of: dict[str, str] = {}
    children: dict[str, list[str]] = defaultdict(list)
    for position, instance in enumerate(instances):
        if instance not in parent_of:
            above = instances[parent[position]] if parent[position] != NO_LABEL else ""
            parent_of[instance] = above
            children[above].append(instance)
    roles = dict(class_of)
    is_language_model = blocks != "" and any(_ATTENTION.search(name) for name in set(classes))
    if not is_language_model:
        return roles
    for above, members in children.items():
        above_class = class_of.get(above, "")
        linears = [member for member in members if _LINEAR.search(class_of[member])]
        norms = [member for member in members if _NORM.search(class_of[member])]
        if above_class == blocks:
            _name(roles, norms, _LAYER_NORMS)
        elif _ATTENTION.search(above_class):
            _name(roles, linears, _ATTENTION_LINEARS)
        elif _FEED_FORWARD.search(above_class):
            _name(roles, linears, _FEED_FORWARD_LINEARS)
            activations = [m for m in members if _ACTIVATION.search(class_of[m])]
            _name(roles, activations, {1: ("mlp_gs",)})
            roles[above] = "mlp_gu" if len(linears) == 3 else above_class
        elif any(class_of[member] == blocks for member in members):
            _name(roles, norms[-1:], {1: ("ln",)})
            _name(roles, linears[-1:], {1: ("lp",)})
            embeddings = [m for m in members if _EMBEDDING.search(class_of[m])]
            _name(roles, embeddings[:1], {1: ("ie",)})
    return roles


def _name(roles: dict[str, str], members: list[str], names: dict[int, tuple[str, ...]]) -> None:
    roles.update(zip(members, names.get(len(members), ()), strict=False))
