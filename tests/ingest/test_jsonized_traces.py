"""The text that `chakra_jsonizer` makes of an `.et`: the same graph."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from chopper_core.extensions.chakra import et, jsonized
from chopper_core.extensions.chakra.et import EtFile
from chopper_core.extensions.chakra.schema import Attribute, Node, NodeType
from chopper_core.ingest.open import open_run
from chopper_core.render.exports import export
from chopper_core.sources.registry import Family, family_of
from chopper_core.util.errors import DataError
from tests.ingest.chakra_files import node, sorted_rows, written
from tests.support import sample_run


def spelled(kind: str, value: Any) -> Any:
    """A value in protobuf's JSON."""
    if kind == "bytes":
        return base64.b64encode(value).decode()
    return str(value) if kind.endswith("64") else value


def attribute(name: str, each: Attribute) -> dict[str, Any]:
    kind = each.type.removesuffix("_list")
    if each.type.endswith("_list"):
        values: Any = [spelled(kind, one) for one in each.value]  # type: ignore[union-attr]
        return {"name": name, f"{kind}List": {"values": values}}
    return {"name": name, f"{kind}Val": spelled(kind, each.value)}


def message(own: Node) -> dict[str, Any]:
    found = {
        "id": str(own.id),
        "name": own.name,
        "type": f"{NodeType(own.type).name}_NODE" if own.type < 8 else own.type,
        "ctrlDeps": [*map(str, own.ctrl_deps)],
        "dataDeps": [*map(str, own.data_deps)],
        "startTimeMicros": str(own.start_us),
        "durationMicros": str(own.duration_us),
        "inputs": dict(own.inputs),
        "outputs": dict(own.outputs),
        "attr": [attribute(*each) for each in own.attributes.items()],
    }
    # Defaults are left out.
    return {key: value for key, value in found.items() if value not in ("0", "", [], {}, 0)}


def as_text(path: Path) -> Path:
    with EtFile(path) as file:
        first = {"version": file.metadata.version}
        first |= {"attr": [attribute(*each) for each in file.metadata.attributes.items()]}  # type: ignore[dict-item]
        messages = [first, *map(message, file)]
    target = path.with_suffix(".json")
    target.write_text("".join(json.dumps(each, indent=2) for each in messages))
    return target


def test_the_text_is_the_same_run(tmp_path: Path) -> None:
    export(sample_run(gpus=2, layers=2), "chakra", tmp_path / "et")
    whole = open_run(str(tmp_path / "et"), jobs=1)
    for path in sorted((tmp_path / "et").glob("*.et")):
        assert family_of(as_text(path)) is Family.TRACE
        path.unlink()
    run = open_run(str(tmp_path / "et"), jobs=1)
    assert sorted_rows(run) == sorted_rows(whole) and run.marks == whole.marks
    assert [gpu.rank for gpu in run.gpus] == [0, 1]


def test_every_type_of_attribute_is_the_same(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        **dict.fromkeys(("int32", "sint32", "sfixed32", "int64", "sint64", "sfixed64"), -5),
        **dict.fromkeys(("uint32", "fixed32", "uint64", "fixed64"), 2 ** 31),
        "double": 0.25, "float": 0.5, "bool": True, "string": "µs", "bytes": b"\x00\xff",
    }  # fmt: skip
    own = node(1, 5)
    own.attributes |= {kind: Attribute(kind, value) for kind, value in values.items()}
    own.attributes |= {
        f"{kind}s": Attribute(f"{kind}_list", [value, value]) for kind, value in values.items()
    }
    path = written(tmp_path / "a.0.et", [own, node(2, 5, 1, type=8)])
    graph, text = et.read(path), jsonized.read(as_text(path))
    assert text.attributes == graph.attributes and text.unknown == graph.unknown


def test_a_cut_text_keeps_the_nodes_before_the_cut(tmp_path: Path) -> None:
    path = as_text(written(tmp_path / "a.0.et", [node(1, 5), node(2, 5, 1), node(3, 5, 2)]))
    path.write_text(path.read_text()[:-30])
    run = open_run(str(path), jobs=1)
    assert len(run.table) == 2 and "damaged or truncated" in run.sources[0].losses[0]
    path.write_text('{"version": "1.0.0"}{"id": "x", "type": "COMP_NODE"}')
    with pytest.raises(DataError, match="has an invalid node"):
        open_run(str(path), jobs=1)
    path.write_text('{"version": "1.0.0"}{"id": "99999999999999999999", "type": "COMP_NODE"}')
    with pytest.raises(DataError, match="a number that is no id"):
        open_run(str(path), jobs=1)
