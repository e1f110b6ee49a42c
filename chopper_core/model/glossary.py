"""The words of the screens: long names of the model's operations, and terms with their meaning."""

from __future__ import annotations

from typing import Final

OPERATIONS: Final = {
    "ie": "input embedding",
    "attn_n": "attention norm",
    "q_ip": "query projection",
    "k_ip": "key projection",
    "v_ip": "value projection",
    "qkv_ip": "fused query, key and value projection",
    "qkv_s": "split of query, key and value",
    "qkv_t": "transpose of query, key and value",
    "qkv_re": "rotary embedding",
    "attn_i": "repetition and transposes of key and value",
    "attn_c": "contiguous copies for attention",
    "attn_fa": "attention (flash attention)",
    "attn_or": "reshape of the attention output",
    "attn_op": "attention output projection",
    "attn_ra": "residual add after attention",
    "mlp_n": "MLP norm",
    "mlp_gp": "MLP gate projection",
    "mlp_up": "MLP up projection",
    "mlp_gs": "MLP gate SiLU",
    "mlp_gu": "product of MLP gate and up",
    "mlp_dp": "MLP down projection",
    "mlp_ra": "residual add after the MLP",
    "ln": "final norm",
    "lp": "logits projection (LM head)",
    "cel": "cross-entropy loss",
    "opt_zg": "zeroing of gradients",
    "opt_gc": "gradient clipping",
    "opt_step": "optimizer step",
    "opt_lr": "learning-rate schedule",
    "dl": "data loading",
}
"""Operations of a transformer by the short names of the original Chopper and the paper."""

_FIGURES: Final = {
    "exposed_comm_ns": "exposed communication",
    "exposed_copy_ns": "exposed copies",
    "elapsed_ns": "time",
    "hot_c": "temperature of the hottest sensor",
    "hotspot_c": "temperature of the hottest sensor",
    "edge_c": "temperature at the edge",
    "gfx_mhz": "clock",
    "mem_mhz": "memory clock",
    "busy_power_w": "power while busy",
    "power_w": "power",
    "gfx_util_pct": "utilization",
    "busy_pct": "share of time with anything running",
    "throttle_pct": "time throttled",
}
"""Figures whose titles are abbreviated, as the subject of a sentence."""


def figure_in_words(name: str, title: str) -> str:
    """A figure as the subject of a sentence: by its title, if that isn't abbreviated."""
    return _FIGURES.get(name, title)


TERMS: Final = {
    "~ before a part": "the time of all GPUs, divided as on those that have counters or telemetry",
    "1/8, top right": "the row of the cursor, and the number of rows",
    "*": "before a figure: of some of the row's GPUs only",
    "~": "before a figure: of the nearest sample, or of some of the row's kernels",
    "achievable peak": "the rate that the best matrix products were measured at on a GPU",
    "activity": "a kernel, memory copy or memset on a GPU",
    "allocated": "GPU memory that the framework gave out to tensors and buffers",
    "arithmetic intensity": "FLOPs per byte moved",
    "baseline": "the run or node that a view is compared with",
    "borrowed": "counters of the same place in another step",
    "bound": "the roof over a row: compute or memory, whichever takes longer",
    "busy": "share of time in which anything runs on the GPU",
    "caused wait": "time that other GPUs spend in collectives waiting for this one",
    "counter": "a hardware event count of a kernel, from rocprofv3 and its relatives",
    "dependency": "one activity waits for another, by the evidence of the trace",
    "exposed": "communication or copies that no compute hides",
    "fragmentation": "GPU memory that is reserved but not allocated",
    "helper": "a kernel of a call other than its main one: a transposition, a sum of parts",
    "hidden": "time of communication that runs during compute",
    "ideal": "the time of the model's FLOPs at the peak of their type",
    "idle": "time in which nothing runs on the GPU, charged to the activity that starts next",
    "instance": "one occurrence of a row: per GPU, step and, for operations, layer",
    "lag": "how late a GPU starts the same kernels as the others; they are ahead of it",
    "longest path": "activities that each wait for the one before, with the most work together",
    "modelled": "worked out from recorded shapes, not counted by the hardware",
    "not explained": "compute that counters can't split into losses, or that only some GPUs can",
    "overlapped": "compute during which communication runs",
    "own wait": "time that this GPU spends in collectives waiting for others",
    "reserved": "GPU memory that the framework's allocator holds, allocated or not",
    "roof": "the rate that the memory's bandwidth or the peak of a type allows at an intensity",
    "saves": "time that a step would take less without a cause, by replay",
    "shape": "sizes, layout and types of an operator's call",
    "signal": "a figure over time, such as a clock or power",
    "straggler": "a GPU that the others wait for",
    "truncated": "cut by the start or end of the profiling window; it counts only with cut=1",
    "unlabelled": "without evidence in the files for a label at this level",
    "unlinked": "without a launch record in the trace",
}


def long_name(operation: str) -> str:
    name, again, _ = operation.partition(" (recompute)")
    long = OPERATIONS.get(name, "")
    return f"{long}, recomputed in backward" if long and again else long
