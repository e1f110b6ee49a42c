"""The devices of a profiled run, and how its rows refer to them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from chopper_core.model.hardware import Agent

_REFERENCE: Final = re.compile(
    r"\s{0,9}(agent|gpu|cpu)?[\s_:-]{0,9}(\d{1,9})(?:\.0{0,9})?\s*", re.IGNORECASE
)

UNKNOWN_NODE: Final = -1

_Id = TypeVar("_Id")


class AgentTable:
    """The GPUs of one process; GPUs that only rows refer to are added as they occur."""

    def __init__(self, agents: Iterable[Agent] = ()) -> None:
        self.agents = list(agents)
        self._found: dict[str, int] = {}

    def number(self, reference: str) -> int:
        """Return the index in `agents` of the device that a file calls `4`, `Agent 4` or `GPU-0`.

        Any other text is the name of an agent.
        """
        found = self._found.get(reference)
        if found is None:
            found = self._found[reference] = self._look_up(reference)
        return found

    def _look_up(self, reference: str) -> int:
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            return self._added(Agent(UNKNOWN_NODE, product=reference.strip()))
        number = int(match.group(2))
        if (match.group(1) or "").lower() == "gpu":
            for index, agent in enumerate(self.agents):
                if agent.type_index == number:
                    return index
            return self._added(Agent(UNKNOWN_NODE, type_index=number))
        for index, agent in enumerate(self.agents):
            if agent.node_id == number:
                return index
        for index, agent in enumerate(self.agents):
            if agent.logical_id == number:
                return index
        return self._added(Agent(number))

    def _added(self, agent: Agent) -> int:
        if agent in self.agents:
            return self.agents.index(agent)
        self.agents.append(agent)
        return len(self.agents) - 1


def gpus_by_id(rows: Mapping[_Id, Mapping[str, Any]]) -> dict[_Id, Agent]:
    """Return the GPUs among agent descriptions (CSV rows or JSON objects, keys in lower case).

    They are sorted by node id, and numbered from 0 if the file doesn't number them.
    """
    found = {
        number: Agent(
            node_id=_integer(row, "node_id", "absolute_index"),
            logical_id=_integer(row, "logical_node_id", "logical_index"),
            type_index=_integer(row, "logical_node_type_id", "type_index", "gpu_index"),
            name=_text(row, "name"),
            product=_text(row, "product_name") or _text(row, "model_name"),
            compute_units=max(0, _integer(row, "cu_count")),
            simds_per_cu=max(0, _integer(row, "simd_per_cu")),
            xccs=max(0, _integer(row, "num_xcc")),
            max_clock_mhz=float(max(0, _integer(row, "max_engine_clk_fcompute"))),
            pci=_pci(row),
        )
        for number, row in rows.items()
        if _is_gpu(row)
    }
    in_order = sorted(found.items(), key=lambda item: item[1].node_id)
    if any(agent.type_index >= 0 for agent in found.values()):
        return dict(in_order)
    return {
        number: replace(agent, type_index=index) for index, (number, agent) in enumerate(in_order)
    }


def same_agent(one: Agent, other: Agent) -> bool:
    """Return whether two descriptions, from two files, can be of the same device."""
    if one.node_id >= 0 and other.node_id >= 0:
        return one.node_id == other.node_id
    if one.type_index >= 0 and other.type_index >= 0:
        return one.type_index == other.type_index
    return one == other


def fuller_agent(one: Agent, other: Agent) -> Agent:
    """Return the more complete description; one with an architecture wins."""
    return max(one, other, key=lambda agent: (bool(agent.name), agent.compute_units))


def _is_gpu(row: Mapping[str, Any]) -> bool:
    kind = str(row.get("agent_type", row.get("type", ""))).strip().upper()
    return kind in ("GPU", "2")


def _pci(row: Mapping[str, Any]) -> str:
    """Return the PCI address; a location id is 256 x bus + 8 x device + function."""
    place = _integer(row, "location_id")
    if place <= 0:
        return ""
    domain = max(0, _integer(row, "domain"))
    return f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


def _integer(row: Mapping[str, Any], *keys: str) -> int:
    for key in keys:
        try:
            return int(float(row[key]))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return -1


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return "" if value is None else str(value).strip()
