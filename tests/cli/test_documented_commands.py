"""Every command line in README and docs runs as it stands there, and prints what the page shows.

Names such as RUN stand for the demo run; what isn't Chopper's, such as torchrun, is a stand-in. A
shell runs those of README, and others that need one.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile
from typing import Final
from zlib import crc32

import pytest

from chopper_core.extensions.chakra.host_trace import SCHEMAS
from chopper_core.extensions.chakra.synthetic import generate, pattern_settings
from chopper_tui.cli import command_module
from chopper_tui.commands import COMMANDS
from tests.communication.test_flight_recorder import WORLD, dump, entry
from tests.communication.test_inspector import written
from tests.conftest import ROOT
from tests.demo import copy_kept, demo_run, small_files
from tests.forked import Forked
from tests.ingest.test_linked_traces import linked
from tests.ingest.test_run_sets import trace
from tests.oracles.astra_sim import ring_of, simulated_log
from tests.programs.fuzz.seeds import SEEDS

PAGES: Final = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "demo_data" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
TESTED_ELSEWHERE: Final = ("errors.md", "benchmarks.md")
"""Their commands are made by a test or a benchmark, with what they say."""
CHOPPER: Final = Path(sys.executable).with_name("chopper")
BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE: Final = re.compile(r"(?<!`)`(chopper\s[^`]*)`(?!`)")
IN_COMMENT: Final = re.compile(r" # .*?: (chopper .*)")
NAMES: Final = {
    r"tcp://host:8786": "tcp://127.0.0.1:9",
    r"chopper ingest runs/today/rank17\.json\.gz (.*)": (
        r"for rank in two_ranks/rank*.gz; do chopper ingest $rank \1; done"
    ),
    r"main/run1 run/": "main/run1 main/run3",
    r"(?<=chopper (?:ingest|export|report) )(?:RUN|runs/a)(?!\S)": "small",
    r"(?<=chopper ingest )run/|(?<=@main )run/|\brun/(?=\?view=determinism)": "small",
    r"(?<=chopper what-if )RUN(?! \S)": "small",
    r"runs/today\b(?!\.)": "two_ranks",
    r"runs/a\b": "demo_data/fsdp2",
    r"\brun/": "demo_data/fsdp2",
    r"\bbaseline/": "demo_data/fsdp1",
    r"RUN\?order=pp": "demo_data/fsdp2?parallel=tp=2,pp=4&order=pp",
    r"RUN:pp=2\?": "demo_data/fsdp2:pp=2?parallel=tp=2,pp=4&",
    r"runs DIR --sweep": "runs sweep --sweep",
    r"-o workload\b": "-o made",
    r"\bDUMPS\b": "dumps",
    r"\bADDRESS\b": "demo_data/fsdp2:gpu=5/iteration=11",
    r"'select …'": "'select 1'",
    r"\bRUN (?=--watch)|(?<=chopper ingest )RUN ": "two_ranks ",
    r"\bRUN\b": "demo_data/fsdp2",
    r"\bA B\b": "demo_data/fsdp1 demo_data/fsdp2",
    r"--play FILE": "--play two.keys",
    r"-o (?:FILE|PATH)\b": "-o out.json",
    r"-o DIR\b": "-o made",
    r"\bFORMAT\b": "perfetto",
    r"\bPATTERN\b": "all_reduce",
    r"\bcheck DIR\b": "check runs/chakra",
    r"\bDIR\b…?": "main",
    r"\bSTORE\b|(?<=--finish )…": "today.chopper",
    r"tp=2,pp=16": "tp=2,pp=4",
    r"\bLOGS\b": "demo_data/fsdp2/telemetry",
}
"""What stands for a run, a file or a word in the pages, and what is used here."""
FOREIGN: Final = ("torchrun", "accelerate", "deepspeed", "srun", "tar")
STAND_IN: Final = "#!/bin/sh\nexit 0\n"
SBATCH: Final = """#!/bin/sh
last=1
while [ "$1" != --wrap ]; do
    case "$1" in --array=1-*) last=${1#--array=1-} ;; esac
    shift
done
for SLURM_ARRAY_TASK_ID in $(seq $last); do
    export SLURM_ARRAY_TASK_ID
    sh -c "$2" >&2 || exit
done
echo 7
"""
FAILS: Final[dict[str, tuple[int, str]]] = {
    r"--fail-if": (5, "can.t be checked"),
    r"check runs/chakra": (1, "violations"),
    r"--finish": (1, "today.chopper is finished"),
    r"--trigger": (1, "no running process with Chopper's hooks"),
    r"--engine dask": (1 if find_spec("distributed") else 2, "Dask"),
    r"chopper live": (1, "no GPU can be read on this node"),
    r"runs \S+ --watch": (2, "follows the runs on a screen"),
    r"'expert balanced'": (2, "expert matches nothing"),
    r"--counters": (2, "--counters needs rocprofv3"),
}
"""Commands that may end otherwise than with 0 here, the exit code, and what they say then."""
WITHOUT_ARGUMENTS: Final = (
    "arguments are required|no run given|needs a name and a run|no command given"
)
ENDLESS: Final = ("--watch", "chopper live", "--live")


def commands_of(page: Path) -> Iterator[tuple[str, str, bool]]:
    """The command lines of a page, what the page shows below each, and whether it's a mention."""
    text = page.read_text(encoding="utf-8")
    for language, block in BLOCK.findall(text):
        lines = block.replace("\\\n", " ")
        if language == "console":
            for shown in re.split(r"^\$ ", lines, flags=re.MULTILINE)[1:]:
                command, _, output = shown.partition("\n")
                yield command, output, False
            continue
        if language in ("", "sh"):
            for line in lines.splitlines():
                if not re.search(r"(?:^|['(])chopper ", line):
                    continue
                yield line, "", False
                yield from ((each, "", False) for each in IN_COMMENT.findall(line))
    for command in INLINE.findall(BLOCK.sub("", text)):
        yield " ".join(command.split()), "", True


EXAMPLES: Final = {
    f"chopper {name} --help": [
        line.strip()
        for line in getattr(command_module(name), "EPILOG", "").splitlines()
        if line.startswith("  chopper ")
    ]
    for name in COMMANDS
}
"""The examples below the options of a command."""


def runnable(line: str) -> str:
    """A line with real names in place of those that stand for any; options in brackets and remarks
    left out."""
    line = re.sub(r"\s+# .*", "", line)
    line = re.sub(r"\s\[[^\]]*\]", "", line.removeprefix("chopper [RUN …]") or "chopper RUN")
    if line.startswith("chopper record") and " -- " in line:
        return f"rm -rf RUN runs/today; {line.partition(' -- ')[0]} -- true"
    if line.startswith("chopper generate"):
        line = re.sub("-o (DIR|workload)", f"-o pattern{crc32(line.encode())}", line)
    for name, real in NAMES.items():
        line = re.sub(name, real, line)
    return line


PAGES_WITH_COMMANDS: Final = {
    str(page.relative_to(ROOT)): page
    for page in PAGES
    if page.name not in TESTED_ELSEWHERE and [*commands_of(page)]
}


def lines_of(name: str) -> Iterator[tuple[str, str, bool]]:
    page = PAGES_WITH_COMMANDS.get(name)
    return commands_of(page) if page else ((line, "", False) for line in EXAMPLES[name])


def first_places() -> dict[str, str]:
    """Where each command is run that no page shows the output of: where it stands first."""
    first: dict[str, str] = {}
    for name in NAMES_OF_PAGES:
        for line, output, _ in lines_of(name):
            if not output:
                first.setdefault(runnable(line), name)
    return first


NAMES_OF_PAGES: Final = [*PAGES_WITH_COMMANDS, *filter(EXAMPLES.get, EXAMPLES)]
FIRST: Final = first_places()
MAKES: Final = re.compile(r"(?: -o|--into) ([\w.-]+)|baseline set (\w+)")
"""What a command makes."""
NEEDS_SHELL: Final = re.compile(r"[;|&$<>`*(){}~]|\w+=\S+ chopper")


def is_repeated(name: str, command: str) -> bool:
    """Whether other commands of a page need what this one makes: it's run there too."""
    made = MAKES.search(command)
    if made is None:
        return command.startswith("ls ")
    others = {runnable(line) for line, *_ in lines_of(name)} - {command}
    return any((made[1] or made[2]) in MAKES.sub("", other) for other in others)


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    with Forked() as chopper:
        yield chopper


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for all pages, with the demo runs as other tests have read them."""
    demo_run(), demo_run("fsdp1")
    return copy_kept(tmp_path_factory.mktemp("kept"))


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages name, and no command changes: each is read once."""
    made = tmp_path_factory.mktemp("inputs")
    (made / "demo_data").symlink_to(ROOT / "demo_data")
    (made / "tests").symlink_to(ROOT / "tests")
    (made / "tour.keys").symlink_to(ROOT / "tests" / "tui" / "tour.keys")
    (made / "two.keys").write_text("down\nenter\n")
    (made / "two_ranks").mkdir()
    (made / "small").symlink_to(small_files())
    for rank in ("rank0.json.gz", "rank1.json.gz"):
        copyfile(small_files() / rank, made / "two_ranks" / rank)
    for number in range(1, 4):
        trace(made / "main" / f"run{number}")
    for tp in (2, 4, 8):
        run = made / "sweep" / f"llama_tp{tp}"
        run.mkdir(parents=True)
        SEEDS["own sampler"](run)
        (run / "manifest.json").write_text(
            f'{{"model": "llama", "tp": {tp}, "microbatch": {tp}, "global_batch": 8}}'
        )
    (made / "dumps").mkdir()
    dump(made / "dumps", 0, [entry(1), entry(2, "started")], {WORLD: [0, 1]})
    written(made / "logs")
    linked(made / "linked.0.json", SCHEMAS[-1])
    workload = made / "workload"
    generate("data_parallel", pattern_settings("data_parallel", ["ranks=4"]), workload)
    for name in (".", "gb_s50", "gb_s200"):
        (workload / name / "log").mkdir(parents=True)
        (workload / name / "log" / "log.log").write_text(simulated_log(workload, ring_of(50)))
    return made


@pytest.fixture
def place(tmp_path: Path, inputs: Path) -> Path:
    """A directory with what the pages name."""
    for each in inputs.iterdir():
        (tmp_path / each.name).symlink_to(each)
    (tmp_path / "runs" / "chakra").mkdir(parents=True)
    SEEDS["chakra"](tmp_path / "runs" / "chakra")
    (tmp_path / "trace.0.et").symlink_to(next((tmp_path / "runs" / "chakra").glob("*.et")))
    (tools := tmp_path / "bin").mkdir()
    (tools / "chopper").symlink_to(CHOPPER)
    for name, text in {**dict.fromkeys(FOREIGN, STAND_IN), "sbatch": SBATCH}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return tmp_path


def environment(place: Path, kept: Path) -> dict[str, str]:
    folders = {f"XDG_{name}_HOME": str(place / "own") for name in ("STATE", "CONFIG")}
    path = os.pathsep.join((str(place / "bin"), str(CHOPPER.parent), os.environ["PATH"]))
    # Nobody answers there.
    folders["DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT"] = "1s"
    return {**os.environ, **folders, "XDG_CACHE_HOME": str(kept), "PATH": path}


@pytest.mark.parametrize("name", NAMES_OF_PAGES)
def test_commands_run_and_print_what_the_page_shows(
    name: str, place: Path, kept: Path, forked: Forked
) -> None:
    done: set[str] = set()
    for line, output, is_mention in lines_of(name):
        command = runnable(line)
        words = command.split()
        if not output and FIRST[command] != name and not is_repeated(name, command):
            continue
        if command in done or (is_mention and len(words) == 2 and words[1] in COMMANDS):
            continue
        done.add(command)
        if any(each in command for each in ENDLESS):
            check_endless(command, place, kept)
            continue
        is_of_readme = name == "README.md" and not is_mention
        if is_of_readme or NEEDS_SHELL.search(re.sub(r"'[^']*'", "", command)):
            ended = subprocess.run(
                ["bash", "-c", command], cwd=place, env=environment(place, kept), timeout=300,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            )  # fmt: skip
        else:
            ended = forked.run(shlex.split(command)[1:], place, environment(place, kept))
        told = f"{name}: {line}\n{command}\n{ended.returncode} {ended.stderr}"
        assert "Traceback" not in ended.stderr and "internal error" not in ended.stderr, told
        lacks = is_mention and re.search(WITHOUT_ARGUMENTS, ended.stderr)
        if ended.returncode and not lacks:
            known = (each for pattern, each in FAILS.items() if re.search(pattern, command))
            code, says = next(known, (0, ""))
            assert ended.returncode == code and re.search(says, ended.stderr), told
        if output:
            assert ended.stdout == output, told
        elif "tar" not in words:
            assert ended.stdout or ended.stderr, told


def check_endless(command: str, place: Path, kept: Path) -> None:
    """What is followed until it is interrupted: it writes a line, or says why it can't."""
    process = subprocess.Popen(
        shlex.split(command, comments=True), cwd=place, env=environment(place, kept),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    try:
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        code, told = process.wait(60), process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
    known = [each for pattern, each in FAILS.items() if re.search(pattern, command)]
    assert first or any(code == each and re.search(says, told) for each, says in known), (
        command,
        code,
        told,
    )
