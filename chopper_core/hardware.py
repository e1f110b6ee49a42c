"""What is known of GPUs by their name: units, clocks, peaks; data in `hardware.toml`."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from chopper_core.errors import DataError
from chopper_core.sources.dispatches import Agent


@dataclass(frozen=True, slots=True)
class Hardware:
    """The specification of one GPU."""

    name: str
    match: tuple[str, ...]
    """Parts of product names that mean this GPU."""
    arch: str
    compute_units: int
    simds_per_cu: int
    xccs: int
    clock_mhz: float
    """The clock of the published peak."""
    bf16_flop_per_clk_cu: int
    memory_gbps: float
    tdp_w: float

    @property
    def bf16_flop_per_ns(self) -> float:
        """Peak of the matrix units in bf16, dense, at `clock_mhz`."""
        return self.compute_units * self.bf16_flop_per_clk_cu * self.clock_mhz * 1e-3


def hardware_of(product: str) -> Hardware | None:
    """The specification of a product, None where it isn't known."""
    known = specifications()
    found = [spec for spec in known.values() if any(part in product for part in spec.match)]
    # MI300X is part of no longer name, but MI250 is part of MI250X: the longest match is meant.
    return max(found, key=lambda spec: max(map(len, spec.match)), default=None)


def hardware_of_agent(agent: Agent, product: str = "") -> Hardware | None:
    """The specification of a device as its profiler describes it, the rest from the table.

    The profiler's own figures (units, XCCs, clock) come first; the table gives what they lack, by
    product, else by architecture.
    """
    known = hardware_of(agent.product) or hardware_of(product)
    if known is None and agent.name:
        known = next((s for s in specifications().values() if s.arch == agent.name), None)
    if known is None:
        return None
    return replace(
        known,
        compute_units=agent.compute_units or known.compute_units,
        simds_per_cu=agent.simds_per_cu or known.simds_per_cu,
        xccs=agent.xccs or known.xccs,
        clock_mhz=agent.max_clock_mhz or known.clock_mhz,
    )


@cache
def specifications() -> Mapping[str, Hardware]:
    """All specifications, the person's own over Chopper's; raises DataError for a broken file."""
    own = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "chopper"
    tables: dict[str, dict[str, Any]] = {}
    for path in (Path(__file__).with_name("hardware.toml"), own / "hardware.toml"):
        if not path.exists():
            continue
        try:
            given = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{path} can't be used: {error}") from error
        for name, table in given.items():
            tables[name] = tables.get(name, {}) | table
    try:
        return {
            name: Hardware(name=name, **{**table, "match": tuple(table["match"])})
            for name, table in tables.items()
        }
    except (TypeError, KeyError) as error:
        raise DataError(f"a GPU in hardware.toml lacks or has too much: {error}") from error
