"""The errors that a user sees: one or two sentences that name the file and say what to do."""

from __future__ import annotations


class ChopperError(Exception):
    """Something the user can act on; its text is the whole message."""

    exit_code = 1


class DataError(ChopperError):
    """A file or a run can't be used."""

    exit_code = 1


class UsageError(ChopperError):
    """A command, an address, a filter or a name of a column is not valid."""

    exit_code = 2


class NoSuchNode(ChopperError):
    """An address is valid, but the run has no such node."""

    exit_code = 3
