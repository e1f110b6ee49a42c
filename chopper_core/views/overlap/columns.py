"""The columns of the view of overlap: what each is called, and what exactly it is."""

from __future__ import annotations

from typing import Final

from chopper_core.metrics import column

_CHOPPER: Final = "UnaryLab/chopper compute_overlap_cdf, with the union of the intervals"
_ALIKE: Final = (
    "Only like instances are compared: of the same operation, phase and GPU, within the row."
)
_NO_SPREAD: Final = "like instances are too few, or their overlap doesn't differ"

OVERLAP: Final = column(
    "overlap_pct",
    "%",
    "overlap",
    "Share of the operations' elapsed time in which collectives run on the same GPU: the union of "
    "their intervals over the sum of instance_ns.",
    source=_CHOPPER,
)
WITH_COPIES: Final = column(
    "overlap_copies_pct",
    "%",
    "with copies",
    "As overlap_pct, of collectives together with the kernels and copies of FSDP's own operations "
    "(FSDP::..., FullyShardedDataParallel...), which the original takes for communication too.",
    source=_CHOPPER,
)
SLOWDOWN: Final = column(
    "slowdown_x",
    "x",
    "slowdown",
    "Median elapsed time of the instances with high overlap over that of those with low overlap: "
    "the upper and the lower quarter of the range between the least and the most overlapped. "
    f"{_ALIKE} Several of them count by their number of instances. At least 2 instances on both "
    "sides, and 10 points between the least and the most overlapped.",
    missing_because=_NO_SPREAD,
)
COST: Final = column(
    "overlap_cost_ns",
    "ns",
    "cost",
    "What the instances with high overlap take beyond the median of those with low overlap (see "
    "slowdown_x): their number times the difference of the medians.",
    missing_because=_NO_SPREAD,
    signed=True,
)
PEARSON: Final = column(
    "pearson_r",
    "",
    "r",
    "Pearson's correlation of overlap and duration over the instances, both as differences from "
    f"the mean of like instances, durations relative to it. {_ALIKE}",
    source="Lit Silicon (arXiv 2511.09861)",
    missing_because=_NO_SPREAD,
)
COSINE: Final = column(
    "cosine",
    "",
    "cosine",
    "Cosine similarity of overlap and duration over the instances, durations relative to the mean "
    f"of like instances. {_ALIKE}",
    source="Lit Silicon (arXiv 2511.09861)",
    missing_because="nothing overlaps",
)
MEDIAN: Final = column(
    "median_overlap_pct", "%", "median", "Median overlap of the row's instances."
)
P5: Final = column("p5_overlap_pct", "%", "p5", "5 % of the instances have less overlap.")
P95: Final = column("p95_overlap_pct", "%", "p95", "95 % of the instances have less overlap.")
INSTANCES: Final = column(
    "instances",
    "",
    "instances",
    "Instances of operations: what an operation computes in one layer, phase and iteration on one "
    "GPU.",
    reduces="sum",
)
TIME: Final = column(
    "instance_ns",
    "ns",
    "elapsed",
    "From the start of an instance's first compute activity to the end of its last, with what lies "
    "between; summed over instances.",
    reduces="sum",
)
BESIDE: Final = column(
    "beside_comm_ns",
    "ns",
    "beside comm",
    "The part of instance_ns during which collectives run on the same GPU.",
    reduces="sum",
)
GPU: Final = column("gpu", "", "GPU", "The GPU of the instance.")
ITERATION: Final = column(
    "iteration",
    "",
    "iteration",
    "The iteration of the instance.",
    missing_because="the trace doesn't say the iteration",
)
PHASE: Final = column("phase", "", "phase", "The phase of the instance.")
LAYER: Final = column(
    "layer",
    "",
    "layer",
    "The layer of the instance.",
    missing_because="it belongs to no layer",
)
