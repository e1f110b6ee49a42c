"""Record the JSON of every view and split of the demo and of real runs, and compare it later.

    python -m tests.programs.answers record FILE [RUN …]     write the answers of this checkout
    python -m tests.programs.answers compare FILE [RUN …]    list what differs from them now

A change of code that should change no figure is compared with the commit before it. Real runs are
those in `$CHOPPER_REALDATA`, if it is set; a RUN selects the runs whose path contains it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
_REAL: Final = (
    "a100_rank0of16.json.gz",
    "chakra",
    "h100x8_nvidia_smi_no_index.csv",
    "mi300x_ddp4",
    "mi300x_qwen05b.json.gz",
    "mi300x_resnet_act_ckpt_rank0of8.json.gz",
    "mi300x_rocm_smi",
    "mi300x_sglang_prefill.json.gz",
    "mi300x_train_resnet18.json.gz",
    "mi300x_vcopy_long",
    "mi300x_vcopy_wide",
    "mi350x_aorta_rocprofv3",
    "one_kernel.json.gz",
    "pipeline_pp8",
    "rocpd",
    "rocprof_compute_vcopy_mi300x",
    "rocprofv3_csv",
    "rocprofv3_two_processes",
    "straggler_whatif",
    "traces_2of128",
    "v100_dlrm_8rank",
    "vllm_decode_graph.json.gz",
)
_MOST_SHOWN: Final = 12
_TOLERANCE: Final = 1e-9
_ALL_ROWS: Final = 10**9


def runs() -> list[Path]:
    """The demo runs, and the real ones where they are."""
    real = os.environ.get("CHOPPER_REALDATA")
    found = [Path(real) / name for name in _REAL] if real else []
    return [ROOT / "demo_data" / name for name in ("fsdp1", "fsdp2")] + found


def addresses() -> Iterator[str]:
    """Addresses below a run: each level, each view, each split of it, and a path below."""
    from chopper_core.views import VIEWS, view_spec

    for path in ("", "gpu=0", "gpu=0/iteration=11", "gpu=0/iteration=11/phase=forward"):
        yield f":{path}" if path else ""
    for name in VIEWS:
        yield f"?view={name}"
        yield f":gpu=0?view={name}"
        yield from (f"?view={name}&by={by}" for by in view_spec(name).by)


def answers(path: Path) -> dict[str, str]:
    """The JSON of each address of a run; the sentence of the error where there is none.

    Of paths only the name of the run and what is below it stay, so that two checkouts compare.
    """
    import chopper_core
    from chopper_core.util.errors import ChopperError

    found: dict[str, str] = {}
    try:
        run = chopper_core.open(str(path))
        found["info"] = json.dumps(run.info(), default=str)
    except ChopperError as error:
        return {"open": json.dumps({"error": str(error)})}
    for address in addresses():
        try:
            found[address] = run.frame(address).to_json(limit=_ALL_ROWS, pictures=True)
        except ChopperError as error:
            found[address] = json.dumps({"error": str(error)})
        except Exception as error:  # a defect to list, not to end at
            found[address] = json.dumps({"exception": repr(error)})
    folders = (f"{path.parent}/", f"{os.path.relpath(path.parent)}/")
    for address in found:
        for folder in folders:
            found[address] = found[address].replace(folder, "")
    return found


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """What differs between two documents: a place and both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from differences(before.get(key), after.get(key), f"{place}.{key}")
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{place}: {len(before)} items → {len(after)}"
        for i, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from differences(old, new, f"{place}[{i}]")
    elif not _equal(before, after):
        yield f"{place}: {str(before)[:100]} → {str(after)[:100]}"


def _equal(before: Any, after: Any) -> bool:
    if isinstance(before, int | float) and isinstance(after, int | float):
        return abs(before - after) <= _TOLERANCE * max(abs(before), abs(after))
    return bool(before == after)


def _all_answers(paths: Sequence[Path]) -> dict[str, dict[str, str]]:
    with ProcessPoolExecutor(2, max_tasks_per_child=1) as pool:
        return {
            path.name: found for path, found in zip(paths, pool.map(answers, paths), strict=True)
        }


def _report(before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> int:
    """Print what differs, by run and address; the number of answers that do."""
    changed = 0
    kinds: Counter[str] = Counter()
    for run, found in after.items():
        for address, text in found.items():
            old = before.get(run, {}).get(address)
            if old is None or old == text:
                continue
            listed = list(differences(json.loads(old), json.loads(text)))
            if listed:
                changed += 1
                kinds.update({place.split(":")[0].split("[")[0] for place in listed})
                print(f"{run} {address or '(tree)'}: {len(listed)} differences")
                print("".join(f"    {line}\n" for line in listed[:_MOST_SHOWN]), end="")
        lost = before.get(run, {}).keys() - found.keys()
        if lost:
            changed += len(lost)
            print(f"{run}: no answer any more to {', '.join(sorted(lost))}")
    print(f"{changed} of {sum(map(len, after.values()))} answers differ; {dict(kinds)}")
    return changed


def main(arguments: Sequence[str] | None = None) -> int:
    """Record or compare; 1 where answers differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("run", nargs="*")
    options = parser.parse_args(arguments)
    paths = [
        path for path in runs() if not options.run or any(part in str(path) for part in options.run)
    ]
    found = _all_answers(paths)
    if options.do == "record":
        options.file.write_bytes(gzip.compress(json.dumps(found).encode(), 6))
        print(f"{sum(map(len, found.values()))} answers of {len(found)} runs in {options.file}")
        return 0
    before = json.loads(gzip.decompress(options.file.read_bytes()))
    return bool(_report(before, found))


if __name__ == "__main__":
    sys.exit(main())
