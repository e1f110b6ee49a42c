"""The gfx clock of a GPU: power management that follows what the GPU does, once a tick."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from random import Random

from generator import constants as c
from generator.config import Config
from generator.records import Activity
from generator.timeline import Steps

TICK_NS = 1_000_000
# Slower than telemetry samples, so that a sampler can follow the clock.
RESPONSE = 1 / 12
WANDER_RETURN = 1 / 100
WANDER_STEP = 0.0007
UNSTEADY_RETURN = 1 / 250
UNSTEADY_STEP = 0.0025


class Load(IntEnum):
    """What a GPU does, from the least to the most demanding."""

    IDLE = 0
    COMM = 1
    MEMORY = 2
    FORWARD = 3
    BACKWARD = 4


CLOCK_SHIFT = {
    Load.IDLE: 0.035,
    Load.COMM: 0.035,
    Load.MEMORY: 0.010,
    Load.FORWARD: 0.004,
    Load.BACKWARD: -0.012,
}


def load_of(activity: Activity) -> Load:
    """The load that one activity is."""
    if not activity.is_compute:
        return Load.COMM
    if not activity.kernel.flops:
        return Load.MEMORY
    return Load.BACKWARD if activity.label.phase == "backward" else Load.FORWARD


class Clock:
    """A GPU's clock around its base, with its history."""

    def __init__(self, config: Config, rank: int) -> None:
        self._config, self._rank, self._iteration = config, rank, c.FIRST_ITERATION
        self._random = Random(f"{config.seed}:clock:{rank}")
        self.base_mhz = round(c.NOMINAL_MHZ + 12 * (self._random.random() - 0.5))
        if config.has_hot_gpu and rank == config.slow_rank:
            self.base_mhz = c.HOT_MHZ
        self._return, self._step = WANDER_RETURN, WANDER_STEP
        if config.is_unsteady:
            self.base_mhz = round(self.base_mhz * c.LOWERED_CLOCK)
            self._return, self._step = UNSTEADY_RETURN, UNSTEADY_STEP
        self.mhz = self.base_mhz * config.clock_factor(rank, c.FIRST_ITERATION)
        self.history = Steps(0, self.mhz)
        self._shift = 0.0
        self._wander = 0.0

    def advance(self, now_ns: int, running: Sequence[Activity]) -> None:
        """Sets the clock for the next tick, by what runs at its start."""
        load = max(map(load_of, running), default=Load.IDLE)
        if running:
            self._iteration = max(each.label.iteration for each in running)
        self._shift += (CLOCK_SHIFT[load] - self._shift) * RESPONSE
        self._wander += self._step * (2 * self._random.random() - 1) - self._return * self._wander
        factor = self._config.clock_factor(self._rank, self._iteration)
        self.mhz = round(self.base_mhz * (1 + self._shift + self._wander) * factor, 2)
        self.history.append(now_ns, self.mhz)
