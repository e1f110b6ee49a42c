"""The columns of the view of ranks: what each is called, and what exactly it is."""

from __future__ import annotations

from typing import Final

from chopper_core.metrics import column

LIT: Final = "Lit Silicon (arXiv 2511.09861), algorithm 1"
_UNMATCHED: Final = "no compute of the row runs on all GPUs"

LEAD: Final = column(
    "lead_ns",
    "ns",
    "lead sum",
    "Lead value: how much earlier the GPU starts each matched kernel than the GPU that starts it "
    "last, summed over the occurrences. The straggler has the least.",
    source=LIT,
    missing_because=_UNMATCHED,
)
MEAN_LEAD: Final = column(
    "mean_lead_ns",
    "ns",
    "lead",
    "lead_ns over the number of matched kernels.",
    source=LIT,
    missing_because=_UNMATCHED,
)
LAST: Final = column(
    "starts_last_pct",
    "%",
    "last %",
    "Share of the matched kernels that start last on this GPU.",
    missing_because=_UNMATCHED,
)
ITERATION_TIME: Final = column(
    "iteration_ns",
    "ns",
    "iteration",
    "From the first start to the last end of the scope's activities of an iteration: of a GPU the "
    "median over the iterations, of an iteration the largest of the GPUs.",
)
WORK: Final = column(
    "work_ns",
    "ns",
    "work/it",
    "Durations of the matched compute, per iteration: the same kernels on every GPU. Of an "
    "iteration the largest of the GPUs.",
    missing_because=_UNMATCHED,
)
THROUGHPUT: Final = column(
    "throughput_x",
    "x",
    "throughput",
    "Normalised throughput: the largest work_ns of the rows over the row's (Chopper's "
    "max(iter)/iter, of sums of durations).",
    source="UnaryLab/chopper lead_and_throughput",
    missing_because=_UNMATCHED,
)
EXTRA_WORK: Final = column(
    "extra_work_ns",
    "ns",
    "extra work",
    "work_ns less its median over the other GPUs: how much longer the same kernels take here, per "
    "iteration.",
    missing_because=_UNMATCHED,
    signed=True,
)
SLOWER: Final = column(
    "slower_pct",
    "%",
    "slower",
    "extra_work_ns in % of the other GPUs' median; of an operation, layer, phase or iteration "
    "that of the GPU behind in the scope.",
    missing_because=_UNMATCHED,
    signed=True,
)
EXTRA_HOST: Final = column(
    "extra_host_ns",
    "ns",
    "extra host",
    "Idle time before launch calls (idle_host_ns) per iteration, less its median over the other "
    "GPUs: how much later the host is here.",
    signed=True,
)
EXTRA_LAUNCH: Final = column(
    "extra_launch_ns",
    "ns",
    "extra launch",
    "Idle time from launch calls on (idle_launch_ns) and before activities without a launch "
    "record, per iteration, less the median over the other GPUs.",
    signed=True,
)
APART: Final = column(
    "apart_by",
    "",
    "apart by",
    "What sets the GPU apart from the others: the largest of extra_work_ns (`clock` where the "
    "GPU's clock is more than 1 % below the others' median, else `kernels`), extra_host_ns "
    "(`host`) and extra_launch_ns (`launch`), "
    "where it is over 1 % of the iteration.",
    missing_because="none is over 1 % of the iteration",
)
COUNT: Final = column(
    "occurrences", "", "matched", "Kernels that were matched across all GPUs, each counted once."
)
BEHIND: Final = column(
    "behind",
    "",
    "behind",
    "The GPU with the least lead in the row.",
    missing_because=_UNMATCHED,
)
AHEAD: Final = column(
    "ahead_ns",
    "ns",
    "others' lead",
    "How much earlier than the GPU behind the others start a matched kernel: mean over them and "
    "over the occurrences.",
    source=LIT,
    missing_because=_UNMATCHED,
)
CHANGE: Final = column(
    "lead_change_ns",
    "ns",
    "lead change",
    "By how much the others' lead over the GPU behind in the scope grows from the row's kernels "
    "to the ones that start next, summed over the scope's iterations.",
    source="UnaryLab/chopper straggler (s-delta), mean over the GPUs",
    missing_because=_UNMATCHED,
    signed=True,
    reduces="sum",
)
