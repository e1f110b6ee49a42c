"""From when on something is a finding: every threshold with its unit and its reason."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Threshold(Struct, frozen=True):
    """A limit that a rule goes by."""

    name: str
    value: float
    unit: str
    why: str


SMALLEST_STAKE: Final = Threshold(
    "smallest stake",
    0.1,
    "% of the iteration",
    "iteration times of a steady run differ by about as much; what costs less is not worth a look",
)
EXPOSED: Final = Threshold(
    "exposed communication",
    5.0,
    "% of the iteration",
    "a sharded step has a first gather and a last reduction that nothing can hide: they alone "
    "stay below",
)
HOST_LATE: Final = Threshold(
    "idle before launch calls",
    10.0,
    "% of the phase",
    "a host that runs ahead of its GPU leaves less than 1 %; a tenth is no single hiccup",
)
LAUNCH_LATE: Final = Threshold(
    "idle after launch calls",
    5.0,
    "% of the phase",
    "a launch takes 4 to 8 µs to reach the GPU; that it shows at all says that kernels are short "
    "or the queue runs empty",
)
PHASE: Final = Threshold(
    "phase that counts", 5.0, "% of the iteration", "what is shorter can't be a problem by itself"
)
FAR_LATER: Final = Threshold(
    "late host at one place against other places",
    3.0,
    "times",
    "where a host is always late, it isn't late at one place",
)
LATE_HOST: Final = Threshold(
    "late host at one place",
    0.2,
    "% of the iteration",
    "an allocator that gives memory back and asks anew takes about 2 ms",
)
STRAGGLER: Final = Threshold(
    "straggler",
    1.0,
    "% of the iteration",
    "the same share from which on a difference between GPUs is a cause in the view of ranks",
)
OVERHEAD: Final = Threshold(
    "largest overhead",
    15.0,
    "% of the GPUs' time",
    "DVFS, the largest one in the paper, costs about a fifth; what is below this is one of many",
)
LARGEST: Final = Threshold(
    "largest overhead against the next",
    1.2,
    "times",
    "losses that are as large as each other have no largest one",
)
SLOWER: Final = Threshold(
    "slower than elsewhere",
    10.0,
    "%",
    "clocks differ by a few percent within an iteration, and kernels with them",
)
ROBUST_Z: Final = Threshold(
    "distance from the median",
    6.0,
    "x 1.4826 x MAD",
    "the usual 3.5 (Iglewicz and Hoaglin) is for one look; here every operation is looked at",
)
LEAST_SPREAD: Final = Threshold(
    "spread that is assumed at least",
    1.0,
    "% of the median",
    "a MAD of almost nothing would make an outlier of everything",
)
CONSISTENT: Final = Threshold(
    "places where it is seen",
    75.0,
    "% of GPUs and iterations",
    "what is of the layer or the operation is there on every GPU and in every iteration",
)
FEWEST: Final = Threshold(
    "layers or iterations, to tell one that differs",
    4,
    "at least",
    "with fewer a median is none",
)
IRREGULAR: Final = Threshold(
    "iterations that don't count",
    2.0,
    "times the median",
    "warm-up, compilation, evaluation or a checkpoint: no step like the others. They are told of, "
    "and no other rule looks at them",
)
CONTENTION: Final = Threshold(
    "slower beside communication",
    20.0,
    "%",
    "the copies of a collective cost what runs beside them some percent anyway",
)
CORRELATION: Final = Threshold(
    "correlation of overlap and duration",
    0.5,
    "Pearson's r, at least",
    "Lit Silicon finds them highly correlated; kernels that differ for other reasons scatter",
)
CONTENTION_STAKE: Final = Threshold(
    "what slowness beside communication costs",
    0.25,
    "% of the iteration",
    "it is found by comparing kernels of different layers: small differences mean nothing",
)
UNSTEADY: Final = Threshold(
    "deviation of a clock",
    0.6,
    "% of its mean",
    "within an operation, where the load is the same. In the generated runs a steady clock "
    "deviates by up to 0.5 %, an unsteady one by 0.7 to 1.5 %; no measured run was at hand",
)
SAMPLES: Final = Threshold(
    "samples per GPU", 20, "at least", "fewer don't tell a deviation from a coincidence"
)
THROTTLED: Final = Threshold(
    "throttled", 10.0, "% of the time", "single samples under a limiter are normal at full load"
)
MATRIX_USE: Final = Threshold(
    "use of the matrix units in large products",
    50.0,
    "%",
    "a rule of thumb: libraries that are tuned for the shapes reach 70 to 80 %",
)
PEAK_REACHED: Final = Threshold(
    "FLOPs of large products against the peak",
    40.0,
    "%",
    "use of 50 % at a clock of 80 % of the nominal one: where no counters tell them apart",
)
LARGE_PRODUCT: Final = Threshold(
    "large product", 1.0, "% of the iteration", "what takes less is hardly worth tuning"
)
IMBALANCE: Final = Threshold(
    "compute beyond the mean",
    5.0,
    "% of the mean",
    "GPUs of one product differ by a few percent in their clocks alone",
)
STAKE_OF_IMBALANCE: Final = Threshold(
    "what imbalance costs", 1.0, "% of the iteration", "as for a straggler"
)
ITERATION: Final = Threshold(
    "longer iteration",
    5.0,
    "% of the median",
    "a rule of thumb: iterations of a steady run differ by 1 to 2 %",
)
COVERAGE: Final = Threshold(
    "labelled time",
    90.0,
    "% of the GPUs' time",
    "sentences about phases and layers need most of it",
)
UNLINKED: Final = Threshold(
    "activities without a launch record",
    5.0,
    "%",
    "those launched before the profiler started, and a few lost ones, are always without",
)

THRESHOLDS: Final = tuple(each for each in list(globals().values()) if isinstance(each, Threshold))
