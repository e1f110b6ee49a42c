"""The real telemetry files; skipped where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.realdata.conftest import FOLDER


@pytest.fixture(scope="session")
def rocm_smi_files() -> Path:
    folder = FOLDER / "mi300x_rocm_smi"
    if not folder.is_dir():
        pytest.skip(f"no real telemetry at {folder}; $CHOPPER_REALDATA says where it is")
    return folder


@pytest.fixture(scope="session")
def log_without_index() -> Path:
    path = FOLDER / "h100x8_nvidia_smi_no_index.csv"
    if not path.is_file():
        pytest.skip(f"no real telemetry at {path}; $CHOPPER_REALDATA says where it is")
    return path
