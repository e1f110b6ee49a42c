"""One attack: a true file, damaged, and what must hold of the run that is opened from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from pytest import MonkeyPatch

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostSteps
from chopper_core.model.table import STATES
from chopper_core.render.exchange import as_json
from chopper_core.render.info import info_text
from chopper_core.sources.settings import read_settings
from chopper_core.store.format import baselines
from chopper_core.store.reader import read_store, verify
from chopper_core.store.writer import write_store
from chopper_core.util.errors import DataError, UsageError
from chopper_core.views import VIEWS
from chopper_core.views.query import query
from chopper_tui.actions import ACTIONS
from chopper_tui.config import read_config, saved_columns, saved_splits
from tests.programs.fuzz.damage import damage
from tests.programs.fuzz.seeds import OWN, SEEDS
from tests.programs.fuzz.types import changes

_VIEWS_EACH: Final = 3
_SHARES: Final = (
    "busy_pct", "share_pct", "gfx_util_pct", "mem_util_pct", "sm_active_pct", "tensor_active_pct",
    "throttle_pct",
)  # fmt: skip
_NO_NUMBER: Final = re.compile(r"\b(nan|inf) ?(%|[nµm]?s|W|J|MHz|°C|[MGT]?B|TB/s|TFLOP/s)\b", re.I)
_SHARE: Final = re.compile(r"busy ([\d.]+) %|([\d.]+) % busy")


def attack(seed: str, number: int) -> str:
    """Damage a seed's file and open the run; returns what came of it in a word.

    Raises AssertionError where a promise is broken, and lets every error pass that is none of
    Chopper's.
    """
    random = Random(f"{seed} {number}")
    with TemporaryDirectory(prefix="fuzz") as folder:
        path = SEEDS[seed](Path(folder))
        damage(path, random)
        views = random.sample([*VIEWS, "explore"], _VIEWS_EACH)
        return hold(Path(folder), beside="rank" not in path.name, views=views)


def attack_cells(seed: str, step: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """One in `step` changes of a seed's file: what is changed, and the attempt."""
    with TemporaryDirectory(prefix="fuzz") as folder:
        path = SEEDS[seed](Path(folder))
        each = islice(enumerate(changes(path)), len(seed) % step, None, step)
        for number, (what, write) in each:
            write()
            views = [[*VIEWS, "explore"][number % (len(VIEWS) + 1)]] if number % 8 == 0 else []
            yield what, partial(hold, Path(folder), beside="rank" not in path.name, views=views)


def attack_own(name: str, number: int) -> str:
    """Damage a file of Chopper's own: it is read, or refused in a sentence."""
    random = Random(f"{name} {number}")
    with TemporaryDirectory(prefix="fuzz") as folder, MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", folder)
        patch.setenv("XDG_CONFIG_HOME", folder)
        path = Path(folder) / "chopper" / name
        path.parent.mkdir()
        path.write_text(OWN[name])
        damage(path, random)
        try:
            for named, paths in baselines().items():
                assert all(isinstance(word, str) for word in (named, *paths))
            config = read_config(lambda: ACTIONS)
            assert all(isinstance(word, str) for word in config.warnings)
            for columns in saved_columns().values():
                assert all(isinstance(column, str) for column in columns)
            assert all(isinstance(lines, int) for lines in saved_splits().values())
        except (DataError, UsageError) as error:
            assert str(path) in str(error) and "Traceback" not in str(error)
            return "refused"
        return "opened"


def hold(folder: Path, *, beside: bool, views: Iterable[str] = (*VIEWS, "explore")) -> str:
    """Open what lies in a folder and check what must hold whatever is damaged in it.

    `beside`: the damaged file lies beside the good trace, whose figures it must not change.
    """
    beside = beside and (folder / "rank0.json").exists()
    for key, value in read_settings(folder).items():
        assert isinstance(key, str) and isinstance(value, int | float | str)
    try:
        run = open_run(str(folder), jobs=1)
    except (DataError, UsageError) as error:
        assert "internal error" not in str(error)
        assert not beside, f"a damaged file beside a good trace hides the trace: {error}"
        assert str(error) and "Traceback" not in str(error)
        return "refused"
    unread = str((run.failed, run.skipped))
    assert "internal error" not in unread, unread
    if beside:
        assert _times(run) == _times_of_good_trace(), "a damaged file changes the trace's figures"
    _survives_a_store(run)
    if run.is_sampled_only:
        _is_sane(info_text(run))
        return "opened"
    _accounts(run)
    _is_sane(info_text(run))
    for name in views:
        try:
            frame = query(run, parse(f"R?view={name}&cut=1"))
        except UsageError:
            continue
        json.loads(as_json(frame), parse_constant=_no_constant)
        _is_sane(" ".join((*frame.headline, *frame.notes)))
        for column, values in frame.values.items():
            if column in _SHARES:
                assert not (values.known() > 100 + 1e-9).any(), f"{column} above 100 %"
    return "opened"


def _survives_a_store(run: Run) -> None:
    """What opens can be kept: a store of it is whole, and says the same."""
    with TemporaryDirectory(prefix="fuzz") as folder:
        store = Path(folder) / "store"
        write_store(run, store)
        verify(store)
        assert _times(read_store(store)) == _times(run)


def _is_sane(text: str) -> None:
    """No share above the whole, and no number that is none."""
    assert not _NO_NUMBER.search(text), text
    for share in _SHARE.finditer(text):
        assert float(share[1] or share[2]) <= 100, text


def _times(run: Run) -> list[tuple[Any, ...]]:
    table = run.table
    columns = (table.gpu, table.iteration, table.phase, table.layer, table.duration_ns)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@cache
def _times_of_good_trace() -> list[tuple[Any, ...]]:
    with TemporaryDirectory(prefix="fuzz") as folder:
        SEEDS["zeus"](Path(folder))
        (Path(folder) / "zeus.csv").unlink()
        return _times(open_run(folder, jobs=1))


def _accounts(run: Run) -> None:
    """Every nanosecond of each GPU's span is accounted for once."""
    table = run.table
    for gpu in np.unique(table.gpu):
        own = table.gpu == gpu
        steps = run.side(HostSteps)
        annotated = steps.of_gpu(int(gpu))
        first, last = steps.start_ns[annotated], (steps.start_ns + steps.duration_ns)[annotated]
        ends = (table.start_ns + table.duration_ns)[own]
        lowest = min([int(table.start_ns[own].min()), *first.tolist()])
        span = max([int(ends.max()), *last.tolist()]) - lowest
        starts = np.sort(table.start_ns[own])
        reached = np.maximum.accumulate(ends[np.argsort(table.start_ns[own], kind="stable")])
        gap = int((starts[1:] - reached[:-1]).max(initial=0))
        charged = sum(int(table.column(state)[own].sum()) for state in STATES)
        # Idle time of over a minute that is most of a span lies between two programs.
        is_between = gap > max(span // 2, 60_000_000_000)
        assert charged == span or (is_between and charged == span - gap)


def _no_constant(text: str) -> Any:
    raise AssertionError(f"{text} in JSON")
