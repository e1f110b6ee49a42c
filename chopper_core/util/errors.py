"""Errors for the user: one or two sentences that name the file and the way out."""

from __future__ import annotations


class ChopperError(Exception):
    """An error the user can act on; its text is the whole message."""

    exit_code = 1


class DataError(ChopperError):
    """A file or a run can't be used."""


class UsageError(ChopperError):
    """Invalid command, address, filter or column name."""

    exit_code = 2


class NothingToShow(UsageError):
    """A view has no rows for a run or a scope; the text is the reason."""

    exit_code = 0


class NoSuchNode(ChopperError):
    """An address is valid, but the run has no such node."""

    exit_code = 3
