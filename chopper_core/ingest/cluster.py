"""Ranks read by the workers of a Dask cluster, which see the files under the same paths."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Final

from chopper_core.util.errors import DataError, UsageError

_TIMEOUT: Final = "20s"


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """An executor on the cluster of a scheduler.

    Raises UsageError where Dask isn't installed, DataError where nothing answers at the address.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError("--engine dask needs Dask: pip install 'chopper-tui[dask]'") from error
    try:
        client = Client(address, timeout=_TIMEOUT, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        # Reading writes files: what was done once is no reason not to do it again.
        yield client.get_executor(pure=False)
