"""Devices are matched to GPUs by PCI bus, HSA/KFD node or number; overrides win."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.hardware import Agent
from chopper_core.model.inputs import BY_HAND, Gpu
from chopper_core.sources.signals import UNNAMED_GPU, GpuName
from chopper_core.util.patterns import late

_PCI: Final = late(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")

_BY_PLACE: Final = "order on the PCI bus"
_BY_ROWS: Final = "order in the file"


class DeviceMatch(Struct, frozen=True):
    """The GPU of a device, and how it was matched."""

    gpu: int | None
    by: str


def devices_of_agents(agents: Sequence[Agent]) -> list[GpuName]:
    """The agents of a profiler; their plain number is the node."""
    return [GpuName(kfd_node=agent.node_id, pci=agent.pci) for agent in agents]


def with_places(gpus: Sequence[Gpu], agents: Sequence[Agent]) -> tuple[Gpu, ...]:
    place_of = {agent.node_id: agent.pci for agent in agents if agent.pci}
    by_node = _unique_nodes(gpus)
    return tuple(
        replace(gpu, pci=place_of[gpu.device])
        if by_node.get(gpu.device) == gpu.index and gpu.device in place_of and not gpu.pci
        else gpu
        for gpu in gpus
    )


def gpus_of_telemetry(
    devices: Sequence[GpuName], gpus: Sequence[Gpu], overrides: Mapping[str, int | None]
) -> list[DeviceMatch]:
    """The GPU of each device of a telemetry file: by PCI bus, KFD node, number or order."""
    by_node, (by_number, number) = _unique_nodes(gpus), _by_number(devices, gpus)
    by_place = {_place(gpu.pci): gpu.index for gpu in gpus if _place(gpu.pci)}
    places = [_place(device.pci) for device in devices]
    nodes = [device.kfd_node for device in devices]
    if len(by_place) == sum(bool(gpu.pci) for gpu in gpus) and any(p in by_place for p in places):
        found = [DeviceMatch(by_place.get(place), "PCI bus") for place in places]
    elif by_place and len(by_place) == len(gpus) and all(places):
        found = [DeviceMatch(None, "nothing: no GPU of the run is at its place on the bus")] * len(
            devices
        )
    elif all(node >= 0 for node in nodes) and any(node in by_node for node in nodes):
        found = [DeviceMatch(by_node.get(node), "KFD node") for node in nodes]
    else:
        found = [
            DeviceMatch(by_number.get(device.index), number)
            if device.index >= 0
            else DeviceMatch(by_number.get(place), _BY_PLACE if device.pci else _BY_ROWS)
            if device != GpuName() or len(gpus) == 1
            else DeviceMatch(None, f"nothing; name its GPU with --gpu FILE:{UNNAMED_GPU}=GPU")
            for place, device in enumerate(devices)
        ]
    return _overridden(found, devices, overrides)


def _by_number(devices: Sequence[GpuName], gpus: Sequence[Gpu]) -> tuple[dict[int, int], str]:
    """GPU by number in a file: its own number; where the file has none of these, as on a job's
    second node, that of its device, if the traces number several from 0 on."""
    by_number = {gpu.index: gpu.index for gpu in gpus}
    by_device = _unique_nodes(gpus)
    named = {device.index for device in devices}
    is_of_node = len(by_device) == len(gpus) > 1 and 0 in by_device and by_device.keys() <= named
    if is_of_node and named.isdisjoint(by_number):
        return by_device, "number of the device"
    return by_number, "number"


def gpus_of_agents(
    agents: Sequence[Agent], gpus: Sequence[Gpu], overrides: Mapping[str, int | None]
) -> list[DeviceMatch]:
    """The GPU of each agent that dispatched: by HSA node, number among the GPUs, or order."""
    by_node, by_order = _unique_nodes(gpus), {n: gpu.index for n, gpu in enumerate(gpus)}
    if any(agent.node_id in by_node for agent in agents):
        found = [DeviceMatch(by_node.get(agent.node_id), "HSA node") for agent in agents]
    elif any(agent.type_index in by_order for agent in agents):
        found = [DeviceMatch(by_order.get(agent.type_index), "number") for agent in agents]
    else:
        found = [DeviceMatch(by_order.get(place), "order") for place in range(len(agents))]
    return _overridden(found, devices_of_agents(agents), overrides)


def _place(pci: str) -> tuple[int, ...]:
    """A PCI address in canonical form; () for none."""
    match = _PCI.fullmatch(pci.strip())
    return tuple(int(part, 16) for part in match.groups()) if match else ()


def _unique_nodes(gpus: Sequence[Gpu]) -> dict[int, int]:
    """GPU by node; nodes that occur on several hosts are ambiguous and left out."""
    counts = Counter(gpu.device for gpu in gpus)
    return {gpu.device: gpu.index for gpu in gpus if counts[gpu.device] == 1}


def _overridden(
    found: Sequence[DeviceMatch], devices: Sequence[GpuName], overrides: Mapping[str, int | None]
) -> list[DeviceMatch]:
    """User overrides win over detection; a GPU assigned that way is not matched to another
    device.
    """
    wanted = {name.casefold(): gpu for name, gpu in overrides.items()}
    taken = {gpu for gpu in overrides.values() if gpu is not None}
    matches = []
    for match, device in zip(found, devices, strict=True):
        name = next((name for name in device.names if name in wanted), None)
        if name is not None:
            matches.append(DeviceMatch(wanted[name], BY_HAND))
        elif match.gpu in taken:
            matches.append(DeviceMatch(None, "--gpu assigns another device to that GPU"))
        else:
            matches.append(match)
    return matches
