"""Trainers that write a line per step: `key: value` pairs behind the number of the step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import Struct

from chopper_core.model.experts import WORDS, counts_in
from chopper_core.sources.registry import Recognised
from chopper_core.sources.trainer.out_of_memory import failed_in, may_have_failed
from chopper_core.sources.trainer.steps import StepField, StepRows, TrainerLog
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.columns import cut_name
from chopper_core.tables.text import HEAD_BYTES, FileHead, FileText
from chopper_core.util.atomic import FileState, file_state
from chopper_core.util.errors import DataError
from chopper_core.util.patterns import late
from chopper_core.util.progress import Progress, silent

_COLOURS: Final = late(r"\x1b\[[0-9;]*[A-Za-z]")
_PROBED_BYTES: Final = 1 << 20
"""Trainers print their settings, perhaps those of each rank, before the first step."""
_JSON_LIST: Final = late(r'\s*\[\s*[{\["]')
_VALUE: Final = r"([^\s|]++)"
_BYTES_VALUE: Final = r"([^\s|]++(?: [KMGT]i?B(?=[\s|,]))?+)"
_GAP: Final = r"[\s,|-]*"
_ONLY_GAP: Final = late(r"[\s,|-]*")
_WRITTEN: Final = late(r"[^\s|]+(?: [KMGT]i?B(?=[\s|,]))?")
_MOST_TEMPLATES: Final = 256
"""The lines of a job have few sets of keys."""
_MOST_KEYS: Final = 1 << 10
"""Of a line."""


class StepLines(Struct, frozen=True, dict=True):
    """The lines of a trainer."""

    format: str
    """For people: `Megatron log`."""
    marker: str
    """The text that a line about a step has, and before which the launcher's and logger's are."""
    step: str
    """A pattern of what the line has from there, with the group `step`; with `epoch` and `of`, the
    steps of an epoch, a step counts from the first epoch on."""
    proof: str
    """A pattern of what only this trainer's lines have."""
    fields: Mapping[str, StepField]
    """The keys that are used."""
    before: str = r"(?<![\w/@.-])"
    key: str = r"[A-Za-z_][\w/@.-]*"
    between: str = r"\s*:\s*"
    phases: str = ""
    """The prefix of the keys of phases, which are in seconds."""
    others: tuple[str, ...] = ()
    """What stands before the marker in lines about something else, such as a validation."""
    no_phases: tuple[str, ...] = ()
    """Ends of keys with the prefix of phases that are no times."""
    ignored: frozenset[str] = frozenset()
    """Keys that say nothing of a step, such as the time that is left."""

    @cached_property
    def patterns(self) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
        """Those of a step, of a pair's key, and of the proof."""
        pair = f"{self.before}({self.key}){self.between}"
        return re.compile(self.step), re.compile(pair), re.compile(self.proof)

    def recognise(self, head: FileHead) -> Recognised | None:
        text = log_start(head)
        if self.marker not in text:
            return None
        proof = self.patterns[2]
        for line in lines_of(text):
            if any(proof.search(line, step.start()) for step in self.steps_in(line)):
                return Recognised(self.format)
        return None

    def steps_in(self, line: str) -> Iterator[re.Match[str]]:
        """The places of a line where a step may begin: what stands before it may have the marker,
        too."""
        at = line.find(self.marker)
        while at >= 0:
            found = self.patterns[0].match(line, at)
            if found and not line.endswith(self.others, 0, at):
                yield found
            at = line.find(self.marker, at + 1)

    def read(self, path: Path, progress: Progress = silent) -> TrainerLog:
        """Raises DataError without any step."""
        text = FileText(path)
        rows = StepRows(path, text.losses)
        reader = LineReader(self, rows)
        for lines in line_blocks(text, progress, rows):
            reader.add(lines)
        reader.finish()
        return rows.finish(self.format)

    def rank(self, key: str) -> int:
        """The place of a key among those declared."""
        return next((at for at, each in enumerate(self.fields) if each == key), len(self.fields))

    def field_of(self, key: str) -> StepField | None:
        is_phase = self.phases and key.startswith(self.phases) and not key.endswith(self.no_phases)
        if is_phase and key not in self.fields:
            return StepField(key.removeprefix(self.phases), 1e9, is_phase=True)
        return self.fields.get(key)


class _Template:
    """Lines with the same keys: one pattern takes all known values at once."""

    def __init__(self, lines: StepLines, line: str, begin: int) -> None:
        """Of a line whose keys begin at a place."""
        found = [*islice(lines.patterns[1].finditer(line, begin), _MOST_KEYS)]
        keys = [each[1] for each in found]
        known = [lines.field_of(key) for key in keys]
        self.unused = [
            key
            for key, field in zip(keys, known, strict=True)
            if field is None and key not in lines.ignored
        ]
        parts = [lines.step]
        fields: dict[StepField, None] = {}
        # Of several keys of one figure the one that is declared first leads.
        leading: dict[StepField, str] = {}
        for key, field in sorted(
            zip(keys, known, strict=True), key=lambda each: lines.rank(each[0])
        ):
            if field is not None:
                leading.setdefault(field, key)
        end = begin
        for match, field in zip(found, known, strict=True):
            # Most keys follow the value before them: a search from there takes twice as long.
            gap = _GAP if _ONLY_GAP.fullmatch(line, end, match.start()) else ".*?"
            # Atomic: a line of many equal keys is searched once.
            parts.append(f"(?>{gap}{lines.before}{re.escape(match[1])}{lines.between})")
            end = match.end()
            if field is not None and field not in fields and leading[field] == match[1]:
                fields[field] = None
                parts.append(_BYTES_VALUE if field.is_bytes else _VALUE)
                if written := _WRITTEN.match(line, end):
                    end = written.end()
        self.fields = tuple(fields)
        self.pattern = re.compile("".join(parts))
        groups = self.pattern.groupindex
        self.step, self.epoch, self.of = (groups.get(name) for name in ("step", "epoch", "of"))
        self.first = self.pattern.groups - len(fields)
        self.lines = 0
        self.rows: list[tuple[str | None, ...]] = []
        self.prefixes: list[str] = []

    def steps(self) -> list[str]:
        at = (self.step or 1) - 1
        if self.epoch is None or self.of is None:
            return [row[at] or "" for row in self.rows]
        epoch, of = self.epoch - 1, self.of - 1
        return [
            str((int(row[epoch] or 1) - 1) * int(row[of] or 0) + int(row[at] or 0))
            for row in self.rows
        ]


class LineReader:
    """Reads the lines of one trainer into rows."""

    def __init__(self, lines: StepLines, rows: StepRows) -> None:
        self._lines, self._rows = lines, rows
        self._templates: dict[tuple[str, ...], _Template] = {}
        self._by_colons: dict[int, _Template] = {}
        """The template of the last line with so many colons: it has keys between all of them."""

    def add(self, lines: Sequence[str]) -> None:
        """Add the steps in some whole lines."""
        marker, templates, others = self._lines.marker, self._by_colons, self._lines.others
        for line in lines:
            at = line.find(marker)
            if at < 0 or line.endswith(others, 0, at):
                continue
            template = templates.get(line.count(":", at))
            match = template.pattern.match(line, at) if template is not None else None
            if match is None:
                step = next(self._lines.steps_in(line), None)
                template = None if step is None else self._template(step)
                if step is None or template is None:
                    continue
                at = step.start()
                match = template.pattern.match(line, at)
                if match is None:
                    self._rows.unreadable += 1
                    continue
            assert template is not None
            template.prefixes.append(line[:at])
            template.rows.append(match.groups())
        for each in self._templates.values():
            if each.rows:
                self._flush(each)

    def finish(self) -> None:
        for each in self._templates.values():
            for key in each.unused:
                self._rows.unused[cut_name(key)] += each.lines

    def _flush(self, template: _Template) -> None:
        columns = [*zip(*template.rows, strict=True)][template.first :]
        values = {
            field: [text or "" for text in texts]
            for field, texts in zip(template.fields, columns, strict=True)
        }
        self._rows.add_lines(template.prefixes, template.steps(), values)
        template.lines += len(template.rows)
        template.rows, template.prefixes = [], []

    def _template(self, step: re.Match[str]) -> _Template | None:
        """The template of the keys behind a step; None for other lines."""
        line, begin = step.string, step.end()
        keys = tuple(self._lines.patterns[1].findall(line, begin)[:_MOST_KEYS])
        if keys not in self._templates:
            if not any(self._lines.field_of(key) for key in keys):
                return None
            if len(self._templates) == _MOST_TEMPLATES:
                self._rows.unreadable += 1
                return None
            self._templates[keys] = _Template(self._lines, line, begin)
        template = self._templates[keys]
        self._by_colons[line.count(":", step.start())] = template
        return template


def lines_of(block: str) -> list[str]:
    """The lines of a log, without colours; progress bars end theirs with a carriage return."""
    if "\x1b" in block:
        block = _COLOURS.sub("", block)
    if "\r" in block:
        block = block.replace("\r", "\n")
    return block.split("\n")


def line_blocks(text: FileText, progress: Progress, rows: StepRows) -> Iterator[list[str]]:
    """The lines of a whole log, piece by piece; `rows` get the allocations that failed and the
    tokens of experts, each behind the lines before it."""
    for block in text.blocks():
        lines, begin = lines_of(block), 0
        has_counts = any(word in block for word in WORDS)
        for at, line in enumerate(lines if has_counts or may_have_failed(block) else ()):
            failed, counts = failed_in(line), counts_in(line) if has_counts else None
            if failed is not None or counts is not None:
                yield lines[begin:at]
                begin = at
            if failed is not None:
                rows.add_failed(*failed)
            if counts is not None:
                rows.add_experts(line[: counts[0]], *counts[1:])
        yield lines[begin:]
        progress(f"read {text.path.name}", text.position, text.size_bytes)


def is_json_object(text: str) -> bool:
    text = text.lstrip()[:2]
    return text.startswith("{") and text != "{'"


def log_start(head: FileHead) -> str:
    """The text of a file in which a first step is looked for; '' of other files."""
    text = head.text
    # Of the formats of text only JSON begins so; a launcher's prefix is `[rank0]:`, and what
    # Python prints of a dictionary begins with `{'`.
    if is_json_object(text) or _JSON_LIST.match(text):
        return ""
    if len(head.data) < HEAD_BYTES:
        return text
    return _start_of(head.path, file_state(head.path))


@lru_cache(maxsize=1)
def _start_of(path: Path, _state: FileState) -> str:
    try:
        with ByteSource(path, _PROBED_BYTES) as source:
            return source.read().decode("utf-8", "replace")
    except DataError:
        return ""
