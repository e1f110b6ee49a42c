"""What the allocator of a rank does: parameters are gathered, activations wait for backward.

A step allocates what each operation makes when its first kernel is launched, on the thread that
launches it, and releases it when nothing needs it any more. The loop keeps the logits of each step:
that is planted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from generator import constants as c
from generator.kernels import BF16, FP32
from generator.records import COMPUTE_STREAM, Activity, MemoryEvent

WIDTHS = {
    "ie": c.HIDDEN,
    "attn_n": c.HIDDEN,
    "q_ip": c.HIDDEN,
    "k_ip": c.KV_WIDTH,
    "v_ip": c.KV_WIDTH,
    "qkv_re": c.HIDDEN + c.KV_WIDTH,
    "attn_fa": c.HIDDEN,
    "attn_op": c.HIDDEN,
    "attn_ra": c.HIDDEN,
    "mlp_n": c.HIDDEN,
    "mlp_gp": c.FFN,
    "mlp_gs": c.FFN,
    "mlp_up": c.FFN,
    "mlp_gu": c.FFN,
    "mlp_dp": c.HIDDEN,
    "mlp_ra": c.HIDDEN,
    "ln": c.HIDDEN,
    "lp": c.VOCAB,
    "cel": 2 * c.VOCAB,
}
"""Elements in bf16 that an operation makes of a token; those of the loss are fp32."""
KEPT_BYTES = c.TOKENS * c.VOCAB * BF16
"""What the loop keeps of each step: its logits."""
BYTES_PER_OWN_PARAMETER = 3 * FP32
"""The parameter and the two moments of Adam."""
GRANULE = 2 << 20
SPARE = 1.06
"""Memory that the allocator holds over what is allocated at the most."""
BEFORE_NS, BEHIND_NS = 400, 300

Key = tuple[int, int | None, str | None]


@dataclass(frozen=True, slots=True)
class _Change:
    time_ns: int
    thread: int
    address: int
    size_bytes: int
    """Negative for a release."""


class Allocator:
    """The allocations of one rank, in the order of its launches."""

    def __init__(self, activities: Sequence[Activity], layers: int, ranks: int) -> None:
        self.activities = activities
        params = c.ROOT_PARAMS + layers * c.LAYER_PARAMS
        self.base_bytes = params // ranks * BYTES_PER_OWN_PARAMETER
        self.ranks = ranks
        self.changes: list[_Change] = []
        self._next = 0x7E91_0000_0000
        self._held: dict[tuple[str, Key], tuple[int, int]] = {}

    def events(self, start_ns: int) -> Iterator[MemoryEvent]:
        """The events from the profiler's start on."""
        self._run()
        allocated, most = self.base_bytes, 0
        for change in sorted(self.changes, key=lambda each: each.time_ns):
            allocated += change.size_bytes
            most = max(most, allocated)
            reserved = -(-round(most * SPARE) // GRANULE) * GRANULE
            if change.time_ns >= start_ns:
                yield MemoryEvent(
                    change.time_ns,
                    change.thread,
                    change.address,
                    change.size_bytes,
                    allocated,
                    reserved,
                )

    def _run(self) -> None:
        last = self._last_uses()
        gradient: Key | None = None
        opened: set[tuple[str, Key]] = set()
        layer: Key | None = None
        for place, activity in enumerate(self.activities):
            label = activity.label
            key = (label.iteration, label.layer, label.operation)
            here = (label.iteration, label.layer, None)
            first = (label.phase, key) not in opened
            opened.add((label.phase, key))
            if label.operation == "all_gather":
                self._take(activity, "gathered", here, self._params(label.layer) * BF16)
            elif label.operation == "fsdp_copy_out":
                self._take(activity, "params", here, self._params(label.layer) * BF16)
                self._free(activity, "gathered", here)
            elif label.operation == "fsdp_copy_in" and activity.stream == COMPUTE_STREAM:
                self._free_all(activity, "scattered")
                self._take(activity, "scattered", here, self._params(label.layer) * FP32)
                self._free(activity, "params", here)
            elif label.operation == "reduce_scatter":
                size = self._params(label.layer) * FP32 // self.ranks
                self._take(activity, "gradient", here, size)
            elif label.phase == "forward" and first and label.operation in WIDTHS:
                if layer is not None and layer != here and layer[1] is not None:
                    self._free(activity, "params", layer)
                layer = here
                self._take(activity, "activation", key, _size(label.operation))
                if label.operation == "cel":
                    self._take(activity, "kept", key, KEPT_BYTES)
            elif label.phase == "backward" and first and label.operation in WIDTHS:
                if gradient is not None:
                    self._free(activity, "flowing", gradient)
                gradient = key
                self._take(activity, "flowing", key, _size(label.operation))
            if label.phase == "optimizer" and gradient is not None:
                self._free(activity, "flowing", gradient)
                self._free_all(activity, "scattered")
                gradient = None
            for held in last.get(place, ()):
                self._free(activity, "activation", held)
            if label.operation == "opt_step" and self._ends_step(place):
                self._free_all(activity, "gradient")

    def _last_uses(self) -> dict[int, list[Key]]:
        """The activations that the backward activity at each place is the last to read."""
        used: dict[Key, int] = {}
        of_layer: dict[tuple[int, int | None], int] = {}
        made: dict[Key, None] = {}
        for place, activity in enumerate(self.activities):
            label = activity.label
            key = (label.iteration, label.layer, label.operation)
            if label.phase == "forward" and label.operation in WIDTHS:
                made[key] = None
            elif label.phase == "backward" and label.operation in WIDTHS:
                used[key] = of_layer[label.iteration, label.layer] = place
        found: dict[int, list[Key]] = {}
        for key in made:
            last = used.get(key, of_layer.get((key[0], key[1])))
            if last is not None:
                found.setdefault(last, []).append(key)
        return found

    def _ends_step(self, place: int) -> bool:
        following = self.activities[place + 1 : place + 2]
        return not following or following[0].label.operation != "opt_step"

    def _params(self, layer: int | None) -> int:
        return c.ROOT_PARAMS if layer is None else c.LAYER_PARAMS

    def _take(self, by: Activity, what: str, key: Key, size: int) -> None:
        self._free(by, what, key)
        address, self._next = self._next, self._next + -(-size // GRANULE) * GRANULE
        self._held[what, key] = address, size
        self._change(by.call.start_ns - BEFORE_NS, by, address, size)

    def _free(self, by: Activity, what: str, key: Key) -> None:
        if held := self._held.pop((what, key), None):
            self._change(by.call.end_ns + BEHIND_NS, by, held[0], -held[1])

    def _free_all(self, by: Activity, what: str) -> None:
        for kind, key in [*self._held]:
            if kind == what:
                self._free(by, kind, key)

    def _change(self, time_ns: int, by: Activity, address: int, size: int) -> None:
        self.changes.append(_Change(time_ns, by.call.thread, address, size))


def _size(operation: str | None) -> int:
    return c.TOKENS * WIDTHS[operation or ""] * BF16
