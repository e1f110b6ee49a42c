"""The Python API: a run to script with, its tables, and frames that notebooks show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from msgspec.structs import replace

from chopper_core.answers.opening import all_read
from chopper_core.answers.runner import Runner, shown, what_if_view
from chopper_core.model import address
from chopper_core.model.inputs import Gpu
from chopper_core.model.overrides import Overrides, overrides_of, parse_clock, parse_gpu
from chopper_core.model.run import Run
from chopper_core.model.settings import given_settings
from chopper_core.model.table import activity_count
from chopper_core.model.view import SEPARATOR, Baseline, View, with_view
from chopper_core.util.errors import UsageError
from chopper_core.util.plugins import extension_part
from chopper_core.views import parsed_view, with_known_name
from chopper_core.views.frame import Frame
from chopper_core.views.spec import SeveralRuns

if TYPE_CHECKING:
    import pyarrow as pa


class ViewOptions(TypedDict, total=False):
    """Options of a view: those of an address by the same names."""

    by: str
    of: str
    columns: Sequence[str] | str
    sort: str
    filter: str
    base: str


class SvgPicture(str):
    """A picture as SVG, which a notebook shows."""

    def _repr_svg_(self) -> str:
        return str(self)


class ResultFrame(Frame, frozen=True, eq=False):
    """A frame that prints as text and shows as a table in notebooks."""

    def __str__(self) -> str:
        from chopper_core.render import as_text

        return as_text(self)

    def __repr__(self) -> str:
        return f"<Frame {self.address}: {len(self)} rows x {len(self.columns)} columns>"

    def _repr_html_(self) -> str:
        from chopper_core.render import as_html

        return as_html(self)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows for whatever reads Arrow's PyCapsule interface: polars, DuckDB, pandas."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table: `name`, `address`, and the columns; missing is null.

        The metadata of each field has its unit and definition.
        """
        from chopper_core.render.arrow import frame_table

        return frame_table(self)

    def picture(self, *, theme: str = "light") -> SvgPicture:
        """The charts of the frame as SVG, on a light or a dark ground.

        Raises UsageError where the view has no charts, or for another theme.
        """
        from chopper_core.render.drawing import GROUNDS, alone
        from chopper_tui.draw.page import LOOK

        if theme not in GROUNDS:
            raise UsageError(f"no theme {theme!r}; the themes are {', '.join(GROUNDS)}")
        lines = LOOK.draw(self)
        if not lines:
            raise UsageError(f"the view {self.view.name or 'of the tree'} has no charts")
        style = getattr(LOOK, theme)
        inks: dict[str, str] = {}
        for line in lines:
            for _, ink in line:
                if ink not in inks:
                    front, back = style(ink)
                    inks[ink] = f"{f'fill:{front}' if front else ''}|{back}"
        drawn = [[(text, inks[ink]) for text, ink in line] for line in lines]
        return SvgPicture(alone(drawn, *GROUNDS[theme]))

    def groupby(self, by: str | Sequence[str], **options: Any) -> Any:
        """The rows grouped, as `to_pandas().groupby`: by levels, or any column."""
        keys = by if isinstance(by, str) else list(by)
        return self.to_pandas().groupby(keys, observed=True, **options)

    @property
    def plot(self) -> Any:
        """`to_pandas().plot`; a plot needs matplotlib, which Chopper doesn't install."""
        return self.to_pandas().set_index("name").plot

    def to_json(
        self, *, limit: int | None = None, pictures: bool = False, brief: bool = False
    ) -> str:
        """The frame as JSON of the schema `chopper.frame/2`, as `chopper show --format json`.

        Without a limit it has at most 200 rows and 100 kB; `rows_total` counts all. `pictures`
        adds the charts as numbers; `brief` rounds to four significant digits.
        """
        from chopper_core.render import as_json

        return as_json(self, limit=limit, has_pictures=pictures, is_brief=brief)


class OpenRun:
    """An open run: its GPUs, kernels, signals, and the frame of any view."""

    def __init__(self, run: Run) -> None:
        """Wrap an aligned run; `chopper_core.open` opens one."""
        self.run = run
        self._runner = Runner(only=run)

    def __repr__(self) -> str:
        what = "sampling intervals" if self.run.is_sampled_only else "activities"
        activities = f"{activity_count(self.run.table):,} {what}"
        return f"<Run {self.name}: {len(self.gpus)} GPUs, {activities}>"

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs: index, rank, device, hardware."""
        return self.run.gpus

    @property
    def signals(self) -> tuple[str, ...]:
        """The names that `signal` takes."""
        return self.run.signal_names

    @property
    def counters(self) -> tuple[str, ...]:
        """The hardware counters that `kernels` can add."""
        from chopper_core.render.kernel_rows import measured_counters

        return measured_counters(self.run)

    @property
    def origin_ns(self) -> int:
        """The start of the first activity on the run's clock; all times here are since then."""
        return self.run.origin_ns

    def info(self) -> dict[str, Any]:
        """The sources found, and those left out: the document of `chopper info`."""
        from chopper_core.render.info import describe

        return describe(self.run)

    def view(self, text: str = "") -> View:
        """The view of an address, with or without the run's name; raises UsageError."""
        rest = text.removeprefix(self.name)
        is_named = rest[:1] in ("", ":", "?")
        asked = with_known_name(address.parse_below(rest if is_named else text))
        own = self.run.overrides.predicted
        if own and not asked.overrides.predicted:
            asked = replace(asked, overrides=replace(asked.overrides, predicted=own))
        return replace(asked, run=self.name)

    def frame(self, view: str | View = "") -> ResultFrame:
        """The frame of a view: an address below the run, or a `View`.

        A view that has nothing to show for the run has no rows and a note that says why. Raises
        NoSuchNode or UsageError where the address doesn't fit the run.
        """
        asked = self.view(view) if isinstance(view, str) else replace(view, run=self.name)
        return _result(self._runner.frame(asked))

    def _repr_html_(self) -> str:
        """The overview of the run, as a frame shows itself."""
        return self.overview()._repr_html_()

    def overview(self, path: str = "", **options: Unpack[ViewOptions]) -> ResultFrame:
        """How fast the run is, and where its step goes; a row per GPU, node or operation."""
        return self._named("overview", path, options)

    def findings(self, path: str = "", **options: Unpack[ViewOptions]) -> ResultFrame:
        """What costs time, with the saving, its range and the confidence; the largest first."""
        return self._named("findings", path, options)

    def ranks(self, path: str = "", **options: Unpack[ViewOptions]) -> ResultFrame:
        """Which GPU the others wait for, from where on, and why."""
        return self._named("ranks", path, options)

    def steps(self, path: str = "", **options: Unpack[ViewOptions]) -> ResultFrame:
        """The steps: time, tokens per second, and the parts of a step."""
        return self._named("throughput", path, options)

    def collectives(self, path: str = "", **options: Unpack[ViewOptions]) -> ResultFrame:
        """Collectives by kind or one by one: waits, rates, who arrives last."""
        return self._named("comms", path, options)

    def top_kernels(self, path: str = "", **options: Unpack[ViewOptions]) -> ResultFrame:
        """The kernels that take the time; `kernels` has every activity."""
        return self._named("kernels", path, options)

    def launches(self, path: str = "", **options: Unpack[ViewOptions]) -> ResultFrame:
        """Why compute starts late: preparation, launch calls, waits in queues."""
        return self._named("launch", path, options)

    def overlap(self, path: str = "", **options: Unpack[ViewOptions]) -> ResultFrame:
        """How much slower operations are while communication runs."""
        return self._named("overlap", path, options)

    def power(self, path: str = "", **options: Unpack[ViewOptions]) -> ResultFrame:
        """Clocks, power, heat and throttling by GPU."""
        return self._named("power", path, options)

    def memory(self, path: str = "", **options: Unpack[ViewOptions]) -> ResultFrame:
        """GPU memory over time, and what holds it."""
        return self._named("memory", path, options)

    def training(self, path: str = "", **options: Unpack[ViewOptions]) -> ResultFrame:
        """The steps of the whole run by its trainer's log; `by="step"` has a row for each."""
        return self._named("training", path, options)

    def experts(self, path: str = "", **options: Unpack[ViewOptions]) -> ResultFrame:
        """How unevenly tokens go to experts and ranks, and what balancing would bring."""
        return self._named("experts", path, options)

    def _named(self, name: str, path: str, options: ViewOptions) -> ResultFrame:
        """A view of a path; options are those of an address, and win over those of the path."""
        view = with_view(self.view(path), name)
        if unknown := options.keys() - ViewOptions.__annotations__.keys():
            known = ", ".join(ViewOptions.__annotations__)
            raise UsageError(f"unknown option {', '.join(sorted(unknown))}; options are {known}")
        columns, base = options.get("columns", ()), options.get("base", "")
        view = shown(view, columns, options.get("sort", ""), options.get("filter", ""))
        return self.frame(
            replace(
                view,
                by=options.get("by", view.by),
                of=options.get("of", view.of),
                baseline=address.parse_baseline(base, view.order) if base else view.baseline,
            )
        )

    def what_if(self, *questions: str, by: str = "") -> ResultFrame:
        """The step time with something changed, by replay: the view `whatif`.

        Questions are those of `chopper what-if`, such as `gpu:5 as peers`; each has a row, and all
        together have one. `by` is a level: what each part of the change brings. Raises UsageError
        for what isn't a question.
        """
        return self.frame(what_if_view(self.view(), questions, by))

    def predicted(self, *questions: str) -> OpenRun:
        """The run as a replay with something changed predicts it, marked `predicted`.

        Raises UsageError for what isn't a question or can't be replayed.
        """
        from chopper_core.views.whatif import DEFAULTS

        asked = Overrides(predicted=SEPARATOR.join(questions or DEFAULTS[:1]))
        return OpenRun(self._runner.run_of(View(self.name, overrides=asked)))

    def kernels(
        self, *, counters: bool | Iterable[str] = False, signals: bool | Iterable[str] = False
    ) -> pa.Table:
        """Every activity as a row of an Arrow table of the schema `KERNELS_SCHEMA`.

        Labels and names are dictionaries, times int64 ns since `origin_ns`, missing values null.
        `counters` and `signals` add columns: all, or those named; a signal is its time-weighted
        mean over the activity. Raises UsageError for a name that the run lacks.
        """
        from chopper_core.render.kernel_rows import kernel_rows, measured_signals

        run = self.run
        return kernel_rows(
            run,
            slice(0, len(run.table)),
            counters=_named(counters, self.counters, "counter"),
            signals=_named(signals, measured_signals(run), "signal"),
        )

    def table(self, name: str) -> pa.Table:
        """One of the run's tables: activities, iterations, collectives, launches, host_operators,
        samples, findings, gpus.

        Times are int64 ns since `origin_ns`, missing values null; the metadata of each field has
        its unit and definition. Raises UsageError for an unknown name.
        """
        from chopper_core.render.tables import table_rows

        return table_rows(self.run, name)

    def sql(self, query: str, *, seconds: float = 60.0) -> pa.Table:
        """The answer to one SELECT over the run's tables (see `table`), by DuckDB.

        Raises UsageError for what isn't a single SELECT over them, and where DuckDB isn't
        installed; DataError where it takes longer than so many seconds.
        """
        from chopper_core.answers.sql import sql

        return sql(self.run, query, seconds=seconds).rows

    def export(
        self,
        path: str | PathLike[str],
        to: str = "chakra",
        *,
        iteration: int | None = None,
        gaps: bool = False,
        force: bool = False,
        host: bool = False,
        nodes: int | None = None,
    ) -> list[str]:
        """Write the run in a format of `chopper export`; returns sentences on what was left out.

        Raises UsageError for an unknown format, an option that it doesn't take, or a path that
        exists; DataError where the run can't be written so.
        """
        from chopper_core.render.exports import ExportOptions, export

        options = ExportOptions(iteration, gaps, force, host, nodes)
        return export(self.run, to, Path(path), options)

    def signal(self, name: str, gpu: int, bins: int = 0) -> pa.Table:
        """A signal of a GPU as intervals (`start_ns`, `end_ns`) with its `value` in each.

        The intervals are those of the samples, or `bins` equal ones; where nothing is known there
        is no interval. Raises UsageError for a signal or a GPU that the run lacks.
        """
        import pyarrow as pa

        from chopper_core.render.tables.samples import intervals
        from chopper_core.tables.arrow_files import array_of

        signal = self.run.signal(name)
        if gpu not in signal.curves:
            there = ", ".join(map(str, signal.curves)) or "none"
            raise UsageError(f"{name} is unknown for GPU {gpu}; GPUs that have it: {there}")
        curve = signal.curves[gpu]
        begins, ends, values = intervals(curve, bins)
        columns = {
            "start_ns": begins - self.origin_ns,
            "end_ns": ends - self.origin_ns,
            "value": values,
        }
        return pa.Table.from_arrays([array_of(each) for each in columns.values()], list(columns))


def open(  # noqa: A001
    run: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    jobs: int | None = None,
    cache: bool = True,
    clock: Sequence[str] = (),
    gpu: Sequence[str] = (),
    hardware: str = "",
    parallel: str = "",
) -> OpenRun:
    """Open a run: a trace, a directory of traces, a store, or several files.

    `jobs` processes read the files (default: as many as pay); with `cache` a run that was read
    before opens from the cache. `clock`, `gpu`, `hardware` and `parallel` are the options of the
    command line. Raises DataError where nothing can be read, UsageError for an option that doesn't
    fit.
    """
    name = (
        fspath(run) if isinstance(run, str | PathLike) else ",".join([fspath(path) for path in run])
    )
    overrides = overrides_of(
        [parse_clock(text) for text in clock],
        [parse_gpu(text) for text in gpu],
        hardware=hardware,
        parallel=parallel,
    )
    if cache:
        from chopper_core.ingest.cache import open_cached

        return OpenRun(open_cached(name, jobs=jobs, overrides=overrides))
    from chopper_core.ingest.open import open_run

    return OpenRun(open_run(name, jobs=jobs, overrides=overrides))


def runs(
    *paths: str | PathLike[str],
    set: Sequence[str] = (),  # noqa: A002 (as the option of the command line is called)
    name: Sequence[str] = (),
    columns: Sequence[str] = (),
    by: str = "",
    sort: str = "",
    filter: str = "",  # noqa: A002
    base: str = "",
    view: str = "",
    parallel: str = "",
    jobs: int | None = None,
    cache: bool = True,
) -> ResultFrame:
    """The runs at and below paths, a row each: settings, speed, power, heat, and why one failed.

    `set` (`["tp=2,pp=16"]`) and `name` (`["{model}_{tp}-{pp}"]`) give settings as the command line
    does; `by` groups by a setting, `base` divides by a run's figures or by the `best` of the group.
    `view` is another view of the runs as in an address: `sweep&by=microbatch&of=tokens_per_j`,
    `overheads`, `findings`.
    Raises DataError where no run is found, UsageError for an unknown column or setting.
    """
    from chopper_core.views import RUNS
    from chopper_core.views.query import query

    names = [fspath(path) for path in paths]
    given = given_settings(set, name)
    overrides = overrides_of(parallel=parallel)
    found: SeveralRuns = extension_part("runs", "a table of runs").open_runs(
        ",".join(names), names, given, jobs=jobs, use_cache=cache, overrides=overrides
    )
    asked = parsed_view(f"runs?view={view or RUNS}")
    overrides = replace(overrides, settings=tuple(set), names=tuple(name))
    asked = replace(asked, run=found.name, overrides=overrides)
    given_too = {
        "columns": tuple(columns), "by": by, "sort": sort, "filter": filter,
        "baseline": Baseline(base) if base else None,
    }  # fmt: skip
    asked = replace(asked, **{key: value for key, value in given_too.items() if value})
    return _result(query(all_read(found), asked))


def _result(frame: Frame) -> ResultFrame:
    return ResultFrame(**{name: getattr(frame, name) for name in Frame.__struct_fields__})


def diff(
    a: str | PathLike[str] | OpenRun,
    b: str | PathLike[str] | OpenRun,
    path: str = "",
    *,
    by: str = "",
) -> ResultFrame:
    """The changes from run `a`, the baseline, to run `b`, largest first: the view `compare`.

    `path` compares a part of both, such as `gpu=0/iteration=11`. `by` is what a row is: an
    operation, another level, or with `place` an operation of a layer in a phase, so that
    `groupby("phase")` and the like have levels to group by.
    """
    before, after = (each if isinstance(each, OpenRun) else open(each) for each in (a, b))
    view = replace(after.view(path), name="compare", by=by, baseline=Baseline(before.name))
    run = replace(after.run, others={**after.run.others, before.name: before.run})
    return OpenRun(run).frame(view)


def _named(asked: bool | Iterable[str], present: Sequence[str], what: str) -> tuple[str, ...]:
    if isinstance(asked, bool):
        return tuple(present) if asked else ()
    names = tuple(asked)
    for name in names:
        if name not in present:
            there = ", ".join(present) or "none"
            raise UsageError(f"no {what} {name!r} in this run; it has {there}")
    return names
