"""Damaged files of each format: what can be read is, and what is read holds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.programs.fuzz.attack import attack, attack_own, hold
from tests.programs.fuzz.seeds import OWN, SEEDS, small_trace

CORPUS = Path(__file__).parent / "corpus"
"""Files that once broke a promise beside the good trace, and folders of files that did alone."""


@pytest.mark.few(6)
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("seed", SEEDS)
def test_damage_costs_what_it_hits(seed: str) -> None:
    for number in range(3):
        attack(seed, number)


@pytest.mark.parametrize("name", OWN)
def test_damage_of_own_files_is_a_sentence_at_most(name: str) -> None:
    for number in range(20):
        attack_own(name, number)


@pytest.mark.sweep
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("seed", SEEDS)
def test_more_damage_costs_what_it_hits(seed: str) -> None:
    for number in range(3, 60):
        attack(seed, number)


@pytest.mark.few(12)
@pytest.mark.parametrize("seed", SEEDS)
def test_undamaged_files_open(seed: str, tmp_path: Path) -> None:
    path = SEEDS[seed](tmp_path)
    assert hold(tmp_path, beside="rank" not in path.name, views=()) == "opened"


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", sorted(path.name for path in CORPUS.iterdir()))
def test_what_was_found_stays_mended(name: str, tmp_path: Path) -> None:
    is_alone = (CORPUS / name).is_dir()
    if is_alone:
        shutil.copytree(CORPUS / name, tmp_path, dirs_exist_ok=True)
    else:
        shutil.copy(CORPUS / name, tmp_path)
        if "rank" not in name:
            small_trace().write(tmp_path / "rank0.json")
    hold(tmp_path, beside=not is_alone and "rank" not in name)
