"""`chopper sql`: a SELECT over the tables of a run, by DuckDB."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Final

from chopper_tui.commands.arguments import READING
from chopper_tui.commands.options import open_one_with, progress_line, view_of
from chopper_tui.commands.output import format_of, write_text

DESCRIPTION: Final = "Ask a run in SQL (DuckDB); without a query, list its tables and columns."
OPTIONS: Final = f"""
    RUN | a run: its files, a directory, or a store
    QUERY? | one SELECT, in quotes; - reads it from standard input
    --format {{text,markdown,csv,json}} | default: text, or by the suffix of -o
    --limit N | at most N rows; default: 1000 of text, all of CSV; 200 and 100 kB of JSON
    --brief | JSON in four significant digits
    -o, --output FILE | write to a file: .md, .csv, .json, else text{READING}"""
EPILOG: Final = """\
Tables: activities, steps, collectives, launches, host_operators, samples,
findings, gpus. Times are ns since the first activity of the run.
  chopper sql RUN 'select gpu, avg(busy_pct) from iterations group by gpu'
"""


def run(options: Namespace) -> int:
    from chopper_core.answers.sql import described_tables, sql
    from chopper_core.render.rows import TEXT_ROWS, catalogue_text, rows_text

    query = sys.stdin.read() if options.query == "-" else options.query
    with progress_line() as progress:
        opened = open_one_with(view_of(options.run, options), options, progress)
        format_name = format_of(options)
        if not query:
            write_text(catalogue_text(described_tables(opened), format_name), options)
            return 0
        fewest = None if format_name == "csv" else TEXT_ROWS
        answer = sql(opened, query, limit=fewest if options.limit is None else options.limit)
    text = rows_text(
        answer.rows,
        answer.total,
        format_name,
        limit=options.limit,
        is_brief=options.brief,
        about={"address": answer.run, "query": answer.query},
        notes=answer.notes,
    )
    write_text(text, options)
    return 0
