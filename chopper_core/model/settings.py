"""The settings of a run: model, parallelism, batch, options, by whatever names they are given.

They come from texts (`tp=2,pp=16`), from names of directories, and from the keys of a job's
configuration, which call the same thing `tensor_model_parallel_size`, `tp_size` or
`tensor_parallel_degree`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from math import isfinite
from typing import Final

from msgspec import Struct

from chopper_core.util.errors import UsageError
from chopper_core.util.patterns import late

Setting = int | float | str
Settings = Mapping[str, Setting]
"""Name of a setting → its value."""

KNOWN: Final = {
    "model": "model",
    "tp": "TP",
    "pp": "PP",
    "dp": "DP",
    "ep": "EP",
    "cp": "CP",
    "fsdp": "FSDP",
    "microbatch": "mbs",
    "global_batch": "GBS",
    "sequence": "seq",
    "options": "options",
}
"""The settings that have a column of their own, the first ones first, with their titles."""
_ALIASES: Final = {
    "model": "model model_name model_type model_flavor",
    "tp": "tp tp_size tp_degree tensor_parallel tensor_parallel_size tensor_parallel_degree "
    "tensor_model_parallel_size",
    "pp": "pp pp_size pp_degree pipeline_parallel pipeline_parallel_size pipeline_parallel_degree "
    "pipeline_model_parallel_size",
    "dp": "dp dp_size dp_degree data_parallel data_parallel_size data_parallel_degree "
    "data_parallel_replicate_degree",
    "ep": "ep ep_size ep_degree expert_parallel_size expert_parallel_degree "
    "expert_model_parallel_size",
    "cp": "cp cp_size cp_degree context_parallel_size context_parallel_degree",
    "fsdp": "fsdp use_fsdp fully_sharded use_torch_fsdp2 data_parallel_shard_degree",
    "microbatch": "microbatch mbs mb micro_batch micro_batch_size micro_batchsize "
    "per_device_train_batch_size local_batch_size",
    "global_batch": "global_batch gbs global_batch_size",
    "sequence": "sequence seq seqlen seq_len seq_length sequence_length encoder_seq_length",
    "options": "options",
}
_TEXTS: Final = ("model", "options", "fsdp")
"""The settings whose values may be text."""
_NAMES: Final = {alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()}
_IN_NAME: Final = late(
    r"(?<![a-z])(?P<name>tp|pp|dp|ep|cp|mbs|mb|gbs|seq)(?P<sep>[-_=]?)(?P<number>\d+)"
    r"(?=$|[^a-z0-9]|(?:tp|pp|dp|ep|cp|mbs|mb|gbs|seq)\d|fsdp)",
    re.IGNORECASE,
)
_RANK_IN_NAME: Final = late(r"(?<![a-z])rank[-_.=\[]*\d", re.IGNORECASE)
_MODEL_IN_NAME: Final = late(
    r"(?<![a-z0-9])(?P<model>(?:(?:gpt|code|meta|tiny|open)[-_])?[a-z][a-z0-9]*(?:[-_.]?v?\d+(?:\.\d+)*)?[-_]?(?:\d+x)?\d+(?:\.\d+)?b"
    r"(?:[-_](?:instruct|chat|base|moe|a\d+b))*)(?![a-z0-9])",
    re.IGNORECASE,
)
"""A model is named with its billions of parameters: `llama3-70b`, `mixtral-8x7b`."""
_FSDP_IN_NAME: Final = late(r"(?<![a-z])fsdp(?P<version>[12]?)(?![a-z0-9])", re.IGNORECASE)
_CHARLLM_NAME: Final = late(r"(?P<model>[^/]+)_(?P<index>\d+)_(?:(?P<bits>[01]{5})|mbs\d+)")
_CHARLLM_H200: Final = late(r"(?<![a-z0-9])h200(?![a-z0-9])", re.IGNORECASE)
_CHARLLM_LAYOUTS: Final = {
    "gpt3-175b": ("tp2 pp16", "tp4 pp8", "tp8 pp4", "tp1 pp32"),
    "llama3-70b": ("tp8 pp2", "tp4 pp4", "tp2 pp8", "tp1 pp16"),
    "mixtral-8x22b": ("ep8 tp1 pp4", "ep8 tp2 pp2", "ep8 tp4 pp1"),
    "mixtral-8x7b": ("ep8 tp1", "ep4 tp2"),
}
"""Model → the layouts that the indices in names stand for in CharLLM-PPT's sweeps on H200, from 1
on, by their YAML; on other GPUs the indices mean others."""
_INT64: Final = 1 << 63
"""Integers from here on are not of 64 bits."""
LAYOUT_FROM: Final = "layout_from"
"""The setting that says that a layout is an assumption, and of what."""
_CHARLLM_BITS: Final = {0: "cc", 1: "act", 4: "sync"}
"""Places of the options in the names of CharLLM-PPT's runs: overlap of communication, activation
recomputation, synchronous."""
_FIELD: Final = late(r"\{([A-Za-z_]\w*)\}")
_WORDS: Final = {"true": "yes", "on": "yes", "false": "no", "off": "no"}


def setting_name(key: str) -> str:
    """The setting that a key of a configuration gives; empty for any other key.

    Of nested keys, joined by dots, the last one counts: `model.tensor_model_parallel_size`.
    """
    words = key.lower().replace("-", "_").split(".")
    return "model" if words[-2:] == ["model", "name"] else _NAMES.get(words[-1], "")


def value_of(text: str) -> Setting:
    """A value from its text: an integer, a number, `yes` or `no`, or the text itself."""
    text = text.strip().strip("'\"")
    if re.fullmatch(r"-?\d{1,15}", text):
        return int(text)
    if re.fullmatch(r"-?\d+\.\d*(?:e[+-]?\d+)?|-?\d+e[+-]?\d+", text, re.IGNORECASE):
        return storable(float(text))
    return _WORDS.get(text.lower(), text)


def storable(value: Setting) -> Setting:
    """A value, as text where it is a number that a store can't hold: NaN, infinite, too large."""
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else str(value)
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def known_settings(keys: Iterable[tuple[str, Setting]]) -> dict[str, Setting]:
    """The settings among keys of a configuration; of two keys of one setting the first counts."""
    found: dict[str, Setting] = {}
    for key, value in keys:
        name = setting_name(key)
        # A text such as `${trainer.tp}` is a reference, which isn't resolved.
        is_text = name in _TEXTS and value and not str(value).startswith("$")
        if name and (is_text or isinstance(value, int | float)):
            found.setdefault(name, value)
    return found


def in_name(name: str) -> dict[str, Setting]:
    """The settings in the name of a directory: `llama3-70b_TP8-PP2_mbs4`, `fsdp2`.

    Where one is 0, or a rank is named, the degrees are coordinates of one rank: `dp0_pp0_tp1`.
    """
    found: dict[str, Setting] = {
        setting_name(match["name"]): int(match["number"]) for match in _IN_NAME.finditer(name)
    }
    degrees = [each for each in ("tp", "pp", "dp", "ep", "cp") if each in found]
    if _RANK_IN_NAME.search(name) or any(found[each] == 0 for each in degrees):
        found = {each: value for each, value in found.items() if each not in degrees}
    if match := _MODEL_IN_NAME.search(name):
        found["model"] = match["model"]
    if match := _FSDP_IN_NAME.search(name):
        found["fsdp"] = int(match["version"]) if match["version"] else "yes"
    if match := _CHARLLM_NAME.fullmatch(name):
        found["model"] = match["model"]
        if bits := match["bits"]:
            words = [word for place, word in _CHARLLM_BITS.items() if bits[place] == "1"]
            found["options"] = "+".join(words) or "base"
    return found


def in_sweep(names: Iterable[str]) -> dict[str, Setting]:
    """The layout of a run of CharLLM-PPT by the index in its name, the last of its directories'.

    Only below a directory that names the GPUs of the sweep, H200; marked by `LAYOUT_FROM`.
    """
    *above, name = names
    match = _CHARLLM_NAME.fullmatch(name)
    if match is None or not any(map(_CHARLLM_H200.search, above)):
        return {}
    layouts, place = _CHARLLM_LAYOUTS.get(match["model"].lower(), ()), int(match["index"]) - 1
    if not 0 <= place < len(layouts):
        return {}
    return {**in_name(layouts[place]), LAYOUT_FROM: "index in the name"}


class Given(Struct, frozen=True):
    """Settings that a person gives for runs, by name or by a pattern over names."""

    assigned: tuple[tuple[str, str, Setting], ...] = ()
    """(pattern of run names, setting, value), in the order given: the last one counts."""
    patterns: tuple[str, ...] = ()
    """Patterns over names: `{model}_{tp}-{pp}_{mbs}`."""

    def of(self, name: str) -> dict[str, Setting]:
        """The settings given for a run, whose name is its path below the directory."""
        found: dict[str, Setting] = {}
        for pattern in self.patterns:
            for text in (name, name.rpartition("/")[2]):
                if match := _compiled(pattern).fullmatch(text):
                    found |= {
                        setting_name(field) or field: value_of(word)
                        for field, word in match.groupdict().items()
                    }
                    break
        for pattern, setting, value in self.assigned:
            if fnmatchcase(name, pattern) or fnmatchcase(name.rpartition("/")[2], pattern):
                found[setting] = value
        return found


NOT_GIVEN: Final = Given()


def given_settings(texts: Iterable[str] = (), patterns: Iterable[str] = ()) -> Given:
    """Settings from `tp=2,pp=16` or `RUNS:tp=2,pp=16`, and patterns over names; UsageError."""
    assigned = []
    for text in texts:
        runs, colon, rest = text.rpartition(":")
        for item in filter(None, rest.split(",")):
            name, equals, value = item.partition("=")
            name = name.strip()
            if not (equals and name.isidentifier() and value.strip()):
                raise UsageError(
                    f"{text!r} is not SETTING=VALUE,…, such as tp=2,pp=16, or 'RUNS:tp=2' with a "
                    "pattern of their names"
                )
            assigned.append((runs if colon else "*", setting_name(name) or name, value_of(value)))
    kept = tuple(patterns)
    for pattern in kept:
        if not _FIELD.search(pattern):
            raise UsageError(
                f"{pattern!r} names no setting; write them in braces: '{{model}}_tp{{tp}}_{{mbs}}'"
            )
        _compiled(pattern)
    return Given(tuple(assigned), kept)


def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern over names as a regular expression; numbers where the setting is one."""
    parts = _FIELD.split(pattern)
    fields = parts[1::2]
    for field in fields:
        if fields.count(field) > 1:
            raise UsageError(f"{pattern!r} names {field} twice")
    texts = [re.escape(part) for part in parts]
    for at in range(1, len(parts), 2):
        of_text = setting_name(parts[at]) in ("", *_TEXTS)
        texts[at] = rf"(?P<{parts[at]}>{'[^/]+?' if of_text else '[0-9]+'})"
    return re.compile("".join(texts))
