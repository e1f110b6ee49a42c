"""Stores with changed columns and valid checksums: whatever is in them, a view answers or refuses.

`python -m tests.programs.fuzz.stores --count 2000`; `--first N --count 1` repeats one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from pytest import MonkeyPatch

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.view import Baseline, View
from chopper_core.render.exchange import as_json
from chopper_core.render.exports import EXPORTS, ExportOptions, export
from chopper_core.render.info import info_text
from chopper_core.render.report import report
from chopper_core.render.text import as_text as text_of
from chopper_core.store.format import RUN, STORE_INDEX, StoreIndex
from chopper_core.store.reader import large_files, read_store, verify
from chopper_core.store.writer import write_store
from chopper_core.util.atomic import stamp_of
from chopper_core.util.errors import ChopperError, DataError
from chopper_core.views import VIEWS
from chopper_core.views.query import query
from chopper_tui.draw.page import LOOK
from tests.allocating import allocating_run
from tests.demo import demo_run
from tests.ingest.test_chakra_runs import chain
from tests.pipelines import pipeline_run
from tests.programs.fuzz.seeds import small_trace
from tests.tui.explorer import measured_run

_ODD: Final = (-2, -1, 0, 1, 2, 7, 127, 1000, 1 << 20, (1 << 31) - 1, 1 << 40, 1 << 60, 1 << 62,
               (1 << 63) - 1, -(1 << 31), -(1 << 40), -(1 << 63))  # fmt: skip
_ODD_FLOATS: Final = (np.nan, np.inf, -np.inf, -1.0, 0.0, 1e308, -1e308, 1e-320, 3.7, 1e18)
_ASKED: Final = 12
"""Of views and exports, each time."""
_DTYPES: Final = ("int8", "int32", "int64", "float64", "uint64", "float32", "bool", "complex128")


def _traced(folder: Path) -> Run:
    for rank in range(2):
        small_trace(rank).write(folder / f"rank{rank}.json")
    return open_run(str(folder), jobs=1)


RUNS: Final[Mapping[str, Callable[[Path], Run]]] = {
    "traced": _traced,
    "measured": lambda _: measured_run(),
    "allocating": lambda _: allocating_run(),
    "pipeline": lambda _: pipeline_run()[0],
    "chakra": lambda folder: open_run(str(chain(folder)), jobs=1),
    "demo": lambda _: demo_run(),
    "cubed demo": lambda _: demo_run(),
}


@cache
def _store(name: str) -> Path:
    folder = Path(mkdtemp(prefix="stores"))
    (folder / "made").mkdir()
    with MonkeyPatch.context() as patch:
        if name.startswith("cubed"):
            patch.setattr("chopper_core.store.writer._MIN_SUMMED_ROWS", 1)
        write_store(RUNS[name](folder / "made"), folder / "store")
    return folder / "store"


def _values(column: np.ndarray, random: Random) -> np.ndarray:
    """A column of the same length and type with other values."""
    values, length = column.copy(), len(column)
    if not length:
        return values
    is_float = values.dtype.kind == "f"
    least, most = (0, 0) if is_float else (np.iinfo(values.dtype).min, np.iinfo(values.dtype).max)
    odd = random.choice(_ODD_FLOATS) if is_float else min(max(random.choice(_ODD), least), most)
    how = random.randrange(7)
    if how == 0:
        values[random.randrange(length)] = odd
    elif how == 1:
        values[:] = odd
    elif how == 2:
        values[[random.randrange(length) for _ in range(1 + length // 10)]] = odd
    elif how == 3:
        values = values[::-1].copy()
    elif how == 4:
        values = values[np.array(random.sample(range(length), length))]
    elif how == 5:
        with np.errstate(all="ignore"):
            values = (values * np.int64(random.choice((-1, 2, 1000, 1 << 30)))).astype(values.dtype)
    else:
        values[: random.randrange(length + 1)] = values[random.randrange(length)]
    return values


def damage_store(folder: Path, random: Random) -> str:
    """Change one to three columns of a store, or numbers of its `run.json`; says what."""
    content = json.loads((folder / RUN).read_bytes())
    places, done = content["places"], []
    for _ in range(random.choice((1, 1, 2, 3))):
        file = random.choice([name for name, columns in places.items() if columns])
        column = random.choice([*places[file]])
        kind, begin, count = place = places[file][column]
        how = random.randrange(12)
        if how == 0:
            place[2] = max(count + random.choice((-1, 1, -count, -count // 2)), 0)
        elif how == 1:
            place[0] = random.choice(_DTYPES)
        elif how == 2:
            other = random.choice([*places[file]])
            places[file][column], places[file][other] = places[file][other], place
        elif how == 3:
            for each in places[file].values():
                each[2] = max(each[2] - 1, 0)
        elif how == 4:
            _change_number(content, random)
        else:
            data = bytearray((folder / file).read_bytes())
            try:
                values = np.frombuffer(data, kind, count, begin)
            except ValueError:
                continue
            data[begin : begin + values.nbytes] = _values(values, random).tobytes()
            (folder / file).write_bytes(data)
        done.append(f"{file} {column} {how}")
    (folder / RUN).write_bytes(json.dumps(content).encode())
    seal(folder)
    return ", ".join(done)


def _change_number(content: Any, random: Random) -> None:
    """Another number, or a list that lacks its last, at a random place that isn't of `places`."""
    found: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        each = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in list(each):
            if key == "places":
                continue
            if isinstance(inner, dict | list):
                walk(inner)
            if isinstance(inner, list | int | float):
                found.append((value, key))

    walk(content)
    at, key = random.choice(found)
    if isinstance(at[key], list):
        at[key] = at[key][:-1]
    else:
        odd: tuple[float, ...] = (-1, 0, 1, 5, 1 << 31, -(1 << 62), 1 << 62)
        at[key] = random.choice((*odd, -1e300, 1e300) if isinstance(at[key], float) else odd)


def seal(folder: Path) -> None:
    """Give a store checksums of what it holds."""
    index = msgspec.json.decode((folder / STORE_INDEX).read_bytes(), type=StoreIndex)
    files = {name: stamp_of(folder / name) for name in index.files}
    sealed = replace(index, files=files).checked()
    (folder / STORE_INDEX).write_bytes(msgspec.json.encode(sealed))


def attack_store(number: int) -> tuple[str, dict[str, Exception]]:
    """Damage a store and ask all of it: what came of it, and the errors that aren't Chopper's."""
    random = Random(f"store {number}")
    name = random.choice([*RUNS])
    with TemporaryDirectory(prefix="stores") as folder:
        damaged = Path(folder) / "store"
        shutil.copytree(_store(name), damaged)
        what = f"{name}: {damage_store(damaged, random)}"
        try:
            run = read_store(damaged)
            verify(damaged, large_files(damaged))
        except DataError:
            return "refused", {}
        except Exception as error:
            return what, {"open": error}
        return what, dict(_asked(run, Path(folder), name, random))


def _asked(run: Run, folder: Path, name: str, random: Random) -> Any:
    base = read_store(_store(name))
    tasks: dict[str, Callable[[], Any]] = {"info": lambda: info_text(run)}
    paths = ["", ":" + random.choice(("gpu=0", "gpu=1/iteration=1", "gpu=0/iteration=4"))]
    for view in (*VIEWS, "explore"):
        for path in paths:
            address = parse(f"R{path}?view={view}&cut={random.randrange(2)}")
            tasks[f"view={view}{path}"] = lambda address=address: _shown(run, address)
    compared = replace(run, others={base.name: base})
    for view in ("compare", "explore", "overview"):
        address = replace(parse(f"R?view={view}"), baseline=Baseline(base.name))
        tasks[f"diff {view}"] = lambda address=address: _shown(compared, address)
    tasks["report"] = lambda: report(run, View(run.name), LOOK, "1")
    options = ExportOptions(force=True)
    for each in EXPORTS:
        tasks[f"export {each}"] = lambda each=each: export(run, each, folder / each, options)
    tasks["write"] = lambda: write_store(run, folder / "again")
    for task in random.sample([*tasks], _ASKED):
        try:
            tasks[task]()
        except ChopperError:
            pass
        except Exception as error:
            yield task, error


def _shown(run: Run, view: View) -> None:
    frame = query(run, view)
    as_json(frame)
    text_of(frame)


def main() -> int:
    """Attack stores by their numbers; prints each failing place once, and counts."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.fuzz.stores", description=__doc__
    )
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--full", action="store_true", help="print tracebacks")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    places: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for number in range(options.first, options.first + options.count):
        what, errors = attack_store(number)
        outcomes["failed" if errors else "refused" if what == "refused" else "opened"] += 1
        for task, error in errors.items():
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames if "chopper" in frame.filename][-1]
            where = f"{type(error).__name__} in {own.filename}:{own.lineno}"
            places[where] += 1
            if places[where] == 1:
                print(f"{number} {what}: {task}: {where}: {error}"[:400], flush=True)
                if options.full:
                    traceback.print_exception(error)
    print(dict(outcomes))
    for where, count in places.most_common():
        print(f"{count:7} {where}")
    return int(bool(places))


if __name__ == "__main__":
    sys.exit(main())
