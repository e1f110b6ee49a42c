"""`chopper runs`: the runs below directories, a row of settings and figures for each."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chopper_core.answers.opening import all_read
from chopper_core.model.overrides import overrides_of
from chopper_core.model.settings import given_settings
from chopper_core.model.view import Baseline, View
from chopper_core.util.errors import UsageError
from chopper_core.views import RUNS
from chopper_tui.commands.arguments import CACHING, PLAYING, RUN_SET, TABLE
from chopper_tui.commands.options import progress_line
from chopper_tui.commands.output import print_frame
from chopper_tui.terminal import can_draw

if TYPE_CHECKING:
    from chopper_core.extensions.runs.run_set import RunSet
    from chopper_core.ingest.follow import Follower

_SHARED: Final = f"{PLAYING}{TABLE}{CACHING}"
DESCRIPTION: Final = (
    "Settings, speed, power and heat of all runs below directories, a row each.\n"
    "On a terminal they open in the explorer."
)
OPTIONS: Final = f"""
    DIR+ | a directory with runs below it, or a run{RUN_SET}
    --by SETTING | group by a setting
    --sort COLUMN | sort by a column; --sort=-COLUMN: largest first
    --filter TERMS | show matching runs, such as 'tp:2 status:ok'
    --base RUN | divide figures by this run's; `best`: by the best of the group
    --sweep SETTING | the figure --of over a setting, a line for each combination of the others
    --of COLUMN | the figure of --sweep
    --pareto A,B | runs that no other run beats in both figures
    --watch | show runs that come, and those that end, while jobs write them
    --interval S | seconds between two looks at the directories; default: 1{_SHARED}"""
EPILOG: Final = """\
Settings of a run (model, tp, pp, microbatch …) come from --set and --name,
else from a manifest (chopper.json, manifest.yaml), the job's .yaml, or names.
  chopper runs sweep --name '{model}_{tp}-{pp}_{mbs}' --sort step_time_ns
  chopper runs sweep --by model --base best
  chopper runs sweep --sweep microbatch --of tokens_per_j
  chopper runs sweep --pareto run_tokens_per_s,j_per_token
"""


def run(options: Namespace) -> int:
    from chopper_core.views.query import query

    view = _view(options)
    if options.watch:
        if (reason := can_draw()) is not None:
            raise UsageError(f"runs --watch follows the runs on a screen: {reason}")
        from chopper_tui.commands.start import show_run

        follower = follower_of(options, view)
        return show_run(follower.open, view, follower=follower, is_ascii=options.ascii)
    is_table = options.format or options.output or options.limit
    if can_draw() is None and not (is_table or options.play):
        from chopper_tui.commands.start import show_run

        shown = set_of_options(options, view.run)
        return show_run(lambda _: shown, view, is_ascii=options.ascii)
    with progress_line() as progress:
        runs = set_of_options(options, view.run)
        all_read(runs, progress)
    if options.play:
        from chopper_tui.commands.explore import play_keys

        return play_keys(runs, view, options)
    print_frame(query(runs, view), options)
    return 0


def follower_of(options: Namespace, view: View) -> Follower:
    from chopper_core.ingest.follow import Follower

    follower = Follower(view.run, every_s=options.interval)
    follower.load = lambda _: set_of_options(options, view.run)
    return follower


def _view(options: Namespace) -> View:
    view = View(
        ",".join(options.dir),
        name=RUNS,
        columns=tuple(name for name in options.columns.split(",") if name),
        sort=options.sort,
        filter=options.filter,
        by=options.by,
        overrides=replace(
            overrides_of(parallel=options.parallel),
            settings=tuple(options.set),
            names=tuple(options.name),
        ),
    )
    if options.base:
        view = replace(view, baseline=Baseline(options.base))
    if options.sweep:
        return replace(view, name="sweep", by=options.sweep, of=options.of)
    if options.pareto:
        return replace(view, name="pareto", of=options.pareto)
    if options.of:
        raise UsageError("--of is the figure of --sweep SETTING")
    return view


def set_of_options(options: Namespace, name: str) -> RunSet:
    from chopper_core.extensions.runs.run_set import open_runs

    return open_runs(
        name,
        options.dir,
        given_settings(options.set, options.name),
        jobs=options.jobs,
        use_cache=not options.no_cache,
        overrides=overrides_of(parallel=options.parallel),
    )
