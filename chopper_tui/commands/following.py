"""Following a run that is being written: what follows it, and what it writes without a screen."""

from __future__ import annotations

import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from time import sleep

from msgspec.structs import replace

from chopper_core.answers.exporter import serve_metrics
from chopper_core.answers.opening import holds_several
from chopper_core.ingest.alarms import AlarmWatch
from chopper_core.ingest.feeds import scrape_feed
from chopper_core.ingest.follow import Follower
from chopper_core.ingest.follow_lines import follow_lines
from chopper_core.model.charts import Cards
from chopper_core.model.view import View, with_view
from chopper_core.util.escape import escape_lines
from chopper_core.util.progress import silent
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from chopper_tui.commands.options import open_view_with, opened_run_with, progress_line, view_of
from chopper_tui.commands.output import glyphs, tell, width, write
from chopper_tui.export import printed


def follower_for(view: View, options: Namespace) -> Follower:
    """What follows the run of a view, with its alarms, feeds and baseline."""
    overrides, jobs = view.overrides.of_run, options.jobs
    follower = Follower(view.run, overrides, jobs=jobs, every_s=options.interval)
    follower.alarms = AlarmWatch(options.alarm)
    if options.export_metrics is not None:
        host = options.export_metrics[0]
        tell(f"metrics at http://{host}:{serve_metrics(follower, options.export_metrics)}/metrics")
    if holds_several(view.run, not options.no_cache):
        follower.load = partial(open_view_with, view, options)
        return follower
    feeds = options.feeds if "feeds" in options else ()
    folder = Path(view.run) if "feeds" in options else follower.folder
    scraped = [scrape_feed(folder, number, url) for number, url in enumerate(options.scrape)]
    follower.feeds = (*feeds, *scraped)
    if view.base_run:
        base = opened_run_with(view.base_run, view.overrides.of_base, options, silent)
        follower.others = {view.base_run: base}
    return follower


def print_once(address: str, options: Namespace) -> int:
    """Print the view `live` as it is after two looks."""
    view = view_of(address, options)
    view = with_view(view, "live") if view == View(view.run) else view
    follower = follower_for(view, options)
    try:
        with progress_line() as progress:
            run = follower.open(progress)
        sleep(follower.every_s)
        follower.tail()
        frame = query(follower.run or run, view)
        is_of_node = "feeds" in options
        frame = _without_addresses(frame) if is_of_node else frame
        text = printed(frame, width=width(), glyphs=glyphs(is_ascii=options.ascii))
        if is_of_node:
            *lines, _ = text.splitlines()
            text = escape_lines("\n".join([*lines, "chopper live", ""]))
        write(text)
    finally:
        follower.close()
    return 0


def _without_addresses(frame: Frame) -> Frame:
    """The frame of a run whose folder goes with the command: nothing leads to it."""
    charts = [
        replace(each, cards=tuple(replace(card, address="") for card in each.cards))
        if isinstance(each, Cards)
        else each
        for each in frame.charts
    ]
    view = replace(frame.view, run=Path(frame.view.run).name)
    return replace(frame, view=view, charts=tuple(charts))


def write_lines(view: View, options: Namespace) -> int:
    """Write what comes as lines of JSON, until the run has ended."""
    follower = follower_for(view, options)
    try:
        with progress_line() as progress:
            follower.open(progress)
        for line in follow_lines(follower):
            write(line)
            sys.stdout.flush()
            if options.exit_on_alarm and (events := follower.recent.events):
                tell(events[-1].text)
                return 4
    finally:
        follower.close()
    return 0
