"""The figures of a run in a table of runs: each is a figure of one of its views.

A figure is computed nowhere else than in its view, and reduced to one number: its total, or the
mean, smallest or largest of its rows.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import METRICS, Metric, Reduces, column, computed_column, metric_named
from chopper_core.model.settings import KNOWN
from chopper_core.model.units import Unit

TOTAL: Final = "total"
MEAN: Final = "mean"
LEAST: Final = "smallest"
LARGEST: Final = "largest"
_WORDS: Final = {
    TOTAL: "The total of {}.",
    MEAN: "The mean of {} over its rows.",
    LEAST: "The smallest {} of its rows.",
    LARGEST: "The largest {} of its rows.",
}
WORLD: Final = "world"
"""The setting of the number of ranks of the job, of which some may have no data."""
TREE: Final = "explore"
"""The name of the tree as a view."""
LOWER: Final = -1
HIGHER: Final = 1


class RunColumn(Struct, frozen=True):
    """A column of a table of runs."""

    metric: Metric
    better: int = 0
    """`LOWER` or `HIGHER` where one is better than the other."""
    view: str = ""
    """The view that has it."""
    name: str = ""
    """Its name there."""
    how: str = TOTAL
    """How the view's figure becomes one of the run."""
    settings: tuple[str, ...] = ()
    """The settings that it is computed from, besides."""


def _of_view(
    name: str, unit: str, title: str, view: str, figure: str, how: str, better: int, text: str = ""
) -> RunColumn:
    source = f"`{figure}` of the view {view}" if view != TREE else f"`{figure}` of the tree"
    definition = f"{text} {_WORDS[how].format(source)}".strip()
    missing = NO_SIGNAL if view == "power" else ""
    metric = computed_column(name, unit, title, definition, missing_because=missing)
    return RunColumn(metric, better, view, figure, how)


def _derived(
    name: str, unit: str, title: str, better: int, text: str, missing: str, *settings: str
) -> RunColumn:
    metric = computed_column(name, unit, title, text, missing_because=missing)
    return RunColumn(metric, better, settings=settings)


_NO_BATCH: Final = "the settings name no global batch (--set global_batch=128)"
_NO_TOKENS: Final = (
    "neither the shapes in the trace nor the settings (global_batch and sequence) give the tokens"
)
NO_SIGNAL: Final = "the telemetry of some of the GPUs lacks it"
_OWN: Final = (
    _of_view(
        "step_time_ns",
        "ns",
        "step",
        "throughput",
        "iteration_ns",
        TOTAL,
        LOWER,
        "Step time: the mean over the complete iterations and GPUs.",
    ),
    _derived(
        "samples_per_s",
        "1/s",
        "samples",
        HIGHER,
        "global_batch of the settings / step_time_ns.",
        _NO_BATCH,
        "global_batch",
    ),
    _derived(
        "run_tokens_per_s",
        "tok/s",
        "run tok/s",
        HIGHER,
        "Tokens per second of the whole run: tokens of a step / step_time_ns. The tokens of a step "
        "are global_batch x sequence of the settings; else tokens_per_s of a GPU x all ranks.",
        _NO_TOKENS,
    ),
    _of_view(
        "tokens_per_s",
        "tok/s",
        "tok/s/GPU",
        "throughput",
        "tokens_per_s",
        TOTAL,
        HIGHER,
        "Tokens per second and GPU.",
    ),
    _derived(
        "j_per_step",
        "J",
        "step energy",
        LOWER,
        "Energy of a step: the total of `iteration_energy_j` of the view power.",
        "telemetry of power or energy doesn't cover an iteration on all GPUs",
    ),
    _derived(
        "j_per_token",
        "J",
        "token energy",
        LOWER,
        "j_per_step / tokens of a step (see run_tokens_per_s).",
        f"{_NO_TOKENS}, or j_per_step is unknown",
    ),
    _derived(
        "tokens_per_j",
        "tok/J",
        "tok/J",
        HIGHER,
        "Tokens of a step / j_per_step.",
        f"{_NO_TOKENS}, or j_per_step is unknown",
    ),
    _derived(
        "j_per_sample",
        "J",
        "sample energy",
        LOWER,
        "j_per_step / global_batch of the settings.",
        f"{_NO_BATCH}, or j_per_step is unknown",
        "global_batch",
    ),
    _derived(
        "samples_per_s_mj",
        "1/(s·MJ)",
        "samples",
        HIGHER,
        "samples_per_s / j_per_step in MJ: CharLLM-PPT's efficiency.",
        f"{_NO_BATCH}, or j_per_step is unknown",
        "global_batch",
    ),
    _of_view(
        "gpu_power_w", "W", "W", "power", "mean_power_w", MEAN, LOWER, "Power of a GPU over time."
    ),
    _of_view("peak_power_w", "W", "peak W", "power", "peak_power_w", LARGEST, LOWER),
    _of_view(
        "gpu_hotspot_c",
        "°C",
        "°C",
        "power",
        "mean_hot_c",
        MEAN,
        LOWER,
        "Temperature of a GPU over time: of its hottest spot, else of the edge.",
    ),
    _of_view("peak_hotspot_c", "°C", "peak °C", "power", "hottest_c", LARGEST, LOWER),
    _of_view(
        "gpu_mhz",
        "MHz",
        "gfx MHz",
        "power",
        "mean_gfx_mhz",
        MEAN,
        HIGHER,
        "Clock of the compute units of a GPU over time.",
    ),
    _of_view(
        "low_mhz",
        "MHz",
        "low MHz",
        "power",
        "p05_gfx_mhz",
        LEAST,
        HIGHER,
        "5th percentile over time of the slowest GPU's clock.",
    ),
    _of_view("lowest_mhz", "MHz", "lowest MHz", "power", "lowest_gfx_mhz", LEAST, HIGHER),
    _of_view("gpu_throttled_pct", "%", "throttled", "power", "throttled_pct", MEAN, LOWER),
    _of_view(
        "gpu_low_clock_pct",
        "%",
        "low clock",
        "power",
        "low_clock_pct",
        MEAN,
        LOWER,
        "Throttling of a run of telemetry without limiters.",
    ),
    _of_view(
        "peak_bytes",
        "B",
        "peak mem",
        TREE,
        "peak_bytes",
        TOTAL,
        LOWER,
        "The most that the framework allocated on a GPU.",
    ),
    _of_view(
        "peak_vram_bytes",
        "B",
        "peak VRAM",
        "power",
        "peak_vram_bytes",
        LARGEST,
        LOWER,
        "The most memory in use on a GPU, by telemetry.",
    ),
    _of_view(
        "exposed_comm_pct",
        "%",
        "exposed",
        "overheads",
        "exposed_comm_pct",
        TOTAL,
        LOWER,
        "Exposed communication in % of the GPUs' time.",
    ),
    _of_view("idle_pct", "%", "idle", "overheads", "idle_pct", TOTAL, LOWER),
    _of_view("bubble_pct", "%", "bubble", "pipeline", "bubble_pct", TOTAL, LOWER),
    _of_view(
        "mfu_pct",
        "%",
        "MFU",
        "overheads",
        "theoretical_pct",
        TOTAL,
        HIGHER,
        "Model FLOPs utilisation: the time that the model's FLOPs take at peak, in % of the time.",
    ),
)
STRAGGLER: Final = RunColumn(
    computed_column(
        "straggler",
        "",
        "straggler",
        "The GPU that the others wait for (see the view ranks).",
        missing_because="no GPU delays the others",
    )
)
STRAGGLER_DELAY: Final = RunColumn(
    computed_column(
        "straggler_delay_ns",
        "ns",
        "delay",
        "How long the straggler delays an iteration: its `delay_ns` of the view ranks.",
        missing_because="no GPU delays the others, or no collective is complete",
    ),
    LOWER,
)
WINDOW: Final = RunColumn(
    computed_column(
        "window_ns",
        "ns",
        "window",
        "The time of the samples of a run of telemetry alone: the total of `window_ns` of the "
        "overview.",
        missing_because="the run has a trace",
    )
)
WINDOW_ENERGY: Final = RunColumn(
    computed_column(
        "window_energy_j",
        "J",
        "energy",
        "The energy of all GPUs in the window: the total of `sampled_energy_j` of the overview.",
        missing_because="the run has a trace, or no power of some GPU",
    ),
    LOWER,
)
RUN_COLUMNS: Final = {
    each.metric.name: each for each in (*_OWN, WINDOW, WINDOW_ENERGY, STRAGGLER, STRAGGLER_DELAY)
}
"""The figures of a run by name, the most important first."""
GPUS: Final = column("""gpus | | GPUs
    The number of GPUs with data.""")
STATUS: Final = column("""status | | status
    ok; short: no complete iteration; partial: some files, or parts of them, can't be read;
    failed: none can.""")  # fmt: skip
REASON: Final = column("""reason | | reason
    Why a run is short, partial or failed.
    missing: the run is ok""")  # fmt: skip
DEFAULT: Final = (
    "step_time_ns",
    "run_tokens_per_s",
    "samples_per_s",
    "j_per_step",
    "j_per_token",
    "samples_per_s_mj",
    "gpu_power_w",
    "peak_power_w",
    "gpu_hotspot_c",
    "peak_hotspot_c",
    "window_ns",
    "window_energy_j",
    "gpu_mhz",
    "low_mhz",
    "gpu_throttled_pct",
    "gpu_low_clock_pct",
    "peak_bytes",
    "peak_vram_bytes",
    "exposed_comm_pct",
    "idle_pct",
    "bubble_pct",
    "mfu_pct",
    "straggler",
    "straggler_delay_ns",
)
"""The default columns among them; one that no run has is left out."""


def setting_column(name: str) -> Metric:
    """The column of a setting."""
    if name == WORLD:
        text = "The number of ranks of the job, according to its traces."
        return computed_column(name, "", "ranks", text, missing_because="no trace gives it")
    text = f"The setting {name}: from the command line, a manifest, the job's file or the name."
    return computed_column(
        name, "", KNOWN.get(name, name), text, missing_because="no source gives it"
    )


def is_better(name: str) -> int:
    """Whether lower or higher figures of a column are better; 0 where neither is."""
    if name in RUN_COLUMNS:
        return RUN_COLUMNS[name].better
    known = METRICS.get(name)
    if known is None:
        return 0
    if known.unit in (Unit.TFLOPS, Unit.TOKENS_PER_S) or name in ("busy_pct", "gfx_mhz"):
        return HIGHER
    return LOWER if known.unit in (Unit.NS, Unit.JOULES, Unit.WATTS, Unit.CELSIUS) else 0


def known_column(name: str) -> Metric:
    """The column of a name in a table of runs: its own, or any metric; raises UsageError."""
    if name in RUN_COLUMNS:
        return RUN_COLUMNS[name].metric
    metric = metric_named(name)
    # Each from one run: sums over runs don't make a total.
    return replace(metric, reduces=Reduces.NONE)


def columns_table() -> str:
    """The figures of a run as a Markdown table: name, unit, definition."""
    metrics = (GPUS, *(each.metric for each in RUN_COLUMNS.values()), STATUS, REASON)
    rows = [f"| `{each.name}` | {each.unit} | {each.definition} |" for each in metrics]
    return "\n".join(["| column | unit | definition |", "| :-- | :-- | :-- |", *rows])
