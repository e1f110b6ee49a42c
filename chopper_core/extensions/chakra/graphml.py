"""The graph of a run in GraphML, for Gephi, yEd, networkx and Cytoscape."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from xml.sax.saxutils import XMLGenerator
from xml.sax.xmlreader import AttributesImpl

from chopper_core.extensions.chakra.drawing import TAKES as TAKES
from chopper_core.extensions.chakra.drawing import TYPES, Fields, drawing
from chopper_core.model.run import Run
from chopper_core.render.exports import ExportOptions, new_file
from chopper_core.util.progress import Progress

DESCRIPTION: Final = "the graph of activities for Gephi, yEd, networkx; one .graphml file"
_MOST: Final = 100_000
"""Nodes; programs that draw graphs hold all of them in memory."""
_SCHEMA: Final = "http://graphml.graphdrawing.org/xmlns"


def write(run: Run, path: Path, options: ExportOptions, progress: Progress) -> list[str]:
    progress("draw the graph", 0, 1)
    found = drawing(run, options, _MOST)
    with new_file(path) as fresh, fresh.open("w", encoding="utf-8") as file:
        xml = _Writer(file, "utf-8", short_empty_elements=True)
        xml.startDocument()
        xml.begin("graphml", xmlns=_SCHEMA)
        of = {**dict.fromkeys(TYPES, "node"), "kind": "edge", "title": "graph"}
        for name, what in of.items():
            kind = TYPES.get(name, "string")
            xml.whole("key", {}, **{"id": name, "for": what, "attr.name": name, "attr.type": kind})
        xml.begin("graph", id="run", edgedefault="directed")
        xml.data("title", found.title)
        for of_gpu in found.nodes.values():
            for node, fields in of_gpu.items():
                xml.whole("node", fields, id=node)
        for source, target, kind in [*found.edges, *found.meetings]:
            xml.whole("edge", {"kind": kind}, source=source, target=target)
        xml.endElement("graph")
        xml.endElement("graphml")
        xml.endDocument()
    return found.notes


class _Writer(XMLGenerator):
    def begin(self, tag: str, **attributes: str) -> None:
        self.startElement(tag, AttributesImpl(attributes))

    def whole(self, tag: str, fields: Fields, **attributes: str) -> None:
        """An element with its data, in a line."""
        self.begin(tag, **attributes)
        for name, value in fields.items():
            self.data(name, value)
        self.endElement(tag)
        self.ignorableWhitespace("\n")

    def data(self, name: str, value: int | str) -> None:
        self.begin("data", key=name)
        self.characters(str(value))
        self.endElement("data")
