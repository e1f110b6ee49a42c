"""Upstream's own tools on what Chopper writes, and Chopper on what they write.

Skipped where mlc-chakra is not installed: `make test-all` installs it; $CHAKRA_TOOLS names the
directory of its commands elsewhere.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chopper_core.extensions.chakra.et import EtFile, write_et
from chopper_core.extensions.chakra.lint import lint
from chopper_core.extensions.chakra.schema import Attribute, Metadata, Node, NodeType
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.render.exports import export
from tests.demo import demo_run
from tests.realdata.conftest import FOLDER

TOOLS = Path(os.environ.get("CHAKRA_TOOLS") or Path(sys.executable).parent)

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(
        not (TOOLS / "chakra_jsonizer").exists(), reason=f"mlc-chakra is not installed in {TOOLS}"
    ),
]


def call(tool: str, *arguments: str | Path, folder: Path) -> None:
    command = [str(TOOLS / tool), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def as_upstream_reads(path: Path, folder: Path) -> list[dict[str, Any]]:
    """The messages of a file by upstream's reader: the metadata, then the nodes."""
    target = folder / f"{path.name}.json"
    call("chakra_jsonizer", "--input_filename", path, "--output_filename", target, folder=folder)
    text, at, found = target.read_text(), 0, []
    while at < len(text):
        message, at = json.JSONDecoder().raw_decode(text, at)
        found.append(message)
    return found


def of_json(kind: str, value: Any) -> Any:
    """A value as protobuf's JSON spells it, where whole numbers of 64 bits are text."""
    if isinstance(value, list):
        return [of_json(kind.removesuffix("_list"), each) for each in value]
    if kind == "bytes":
        return base64.b64encode(value).decode()
    return str(value) if kind.endswith("64") else value


def same_attribute(shown: dict[str, Any], attribute: Attribute) -> bool:
    name = "".join(part.capitalize() for part in attribute.type.split("_"))
    key = name[0].lower() + name[1:] + ("" if attribute.type.endswith("_list") else "Val")
    found = shown[key].get("values", []) if attribute.type.endswith("_list") else shown[key]
    wanted = of_json(attribute.type, attribute.value)
    is_float = attribute.type.startswith(("float", "double"))
    return bool(found == (pytest.approx(wanted) if is_float else wanted))


def check_run(run: Run, folder: Path) -> None:
    export(run, "chakra", folder / "out")
    files = sorted((folder / "out").glob("*.et"))
    assert len(files) == len(run.gpus)
    for path in files:
        messages = as_upstream_reads(path, folder)
        with EtFile(path) as file:
            nodes = list(file)
        assert len(messages) == len(nodes) + 1
        assert [int(each["id"]) for each in messages[1:]] == [each.id for each in nodes]
        for shown, node in zip(messages[1:], nodes, strict=True):
            assert [int(each) for each in shown.get("dataDeps", [])] == node.data_deps
            named = {each["name"]: each for each in shown["attr"]}
            assert named.keys() == node.attributes.keys()
            assert all(same_attribute(named[name], each) for name, each in node.attributes.items())
        graph = folder / f"{path.name}.graphml"
        call(
            "chakra_visualizer", "--input_filename", path, "--output_filename", graph, folder=folder
        )
        assert graph.read_text().count("<node ") == len(nodes)


def test_upstream_reads_the_demo(tmp_path: Path) -> None:
    check_run(demo_run(), tmp_path)


@pytest.mark.parametrize("name", ["v100_dlrm_8rank", "mi300x_ddp4"])
def test_upstream_reads_real_runs(name: str, tmp_path: Path) -> None:
    if not (FOLDER / name).exists():
        pytest.skip(f"no {FOLDER / name}")
    check_run(open_run(str(FOLDER / name), jobs=1), tmp_path)


def test_all_samples_of_the_generator_are_read(tmp_path: Path) -> None:
    call("chakra_generator", "--num_npus", "2", folder=tmp_path)
    paths = sorted(tmp_path.glob("*.et"))
    assert len(paths) == 28
    types = set()
    for path in paths:
        messages = as_upstream_reads(path, tmp_path)
        with EtFile(path) as file:
            nodes = list(file)
            assert file.metadata.version == messages[0].get("version", "")
        assert len(nodes) == len(messages) - 1
        for shown, node in zip(messages[1:], nodes, strict=True):
            assert shown.get("type", "INVALID_NODE") == f"{NodeType(node.type).name}_NODE"
            assert int(shown.get("id", 0)) == node.id
            for each in shown.get("attr", []):
                assert same_attribute(each, node.attributes[each["name"]])
                types.add(node.attributes[each["name"]].type)
    assert len(types) == 30


def test_upstream_reads_every_attribute_type(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        **dict.fromkeys(("int32", "sint32", "sfixed32"), -2 ** 31),
        **dict.fromkeys(("int64", "sint64", "sfixed64"), -2 ** 63),
        **dict.fromkeys(("uint32", "fixed32"), 2 ** 32 - 1),
        **dict.fromkeys(("uint64", "fixed64"), 2 ** 64 - 1),
        "double": 1e300, "float": 0.5, "bool": True, "string": "µs", "bytes": b"\x00\xff",
    }  # fmt: skip
    attributes = {kind: Attribute(kind, value) for kind, value in values.items()}
    attributes |= {
        f"{kind}_list": Attribute(f"{kind}_list", [value] * 70) for kind, value in values.items()
    }
    path = tmp_path / "a.0.et"
    with path.open("wb") as file:
        write_et(file, Metadata("1.0.0"), [Node(id=1, type=NodeType.COMP, attributes=attributes)])
    (node,) = as_upstream_reads(path, tmp_path)[1:]
    assert len(node["attr"]) == 30
    assert all(same_attribute(each, attributes[each["name"]]) for each in node["attr"])
    assert lint([path]).violations == []
