"""What checks the sentences of the product, and the goldens that have their words."""

from __future__ import annotations

import json
import os
import re
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.wording import Wording, Words, rewrite

TEST = re.compile(r"^(?:async )?def (test_\w+)\([^)]*wording: Wording", re.MULTILINE)
SENTENCE = "GPU 3 is held back by its host: 4.3 ms per step, 1,672 of 16,720 calls"


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wording:
    """One that writes its golden."""
    monkeypatch.setenv("CHOPPER_UPDATE_GOLDENS", "1")
    return Wording(tmp_path / "golden" / "test_x.json", "test", {str(tmp_path): "TMP"})


def test_the_golden_has_the_words_and_the_test_the_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: Wording
) -> None:
    fresh(f"{SENTENCE}\n", "GPU 3", "4.3 ms", "1,672 of")
    fresh(f"{tmp_path}/a.json is damaged", f"{tmp_path}/a.json")
    golden = tmp_path / "golden" / "test_x.json"
    assert json.loads(golden.read_text()) == {"test": [SENTENCE, "TMP/a.json is damaged"]}
    monkeypatch.delenv("CHOPPER_UPDATE_GOLDENS")
    Wording(golden, "test", {})(SENTENCE, "GPU 3")
    with pytest.raises(AssertionError):
        Wording(golden, "test", {})(SENTENCE.replace("host", "node"), "GPU 3")


@pytest.mark.parametrize("fact", ["GPU 30", "GPU 4", "3 ms", "672 of", "1,672 of 16", "6,720"])
def test_a_fact_that_isn_t_there_fails_whatever_is_written(fact: str, fresh: Wording) -> None:
    """A part of a number is another number."""
    with pytest.raises(AssertionError):
        fresh(SENTENCE, fact)


def test_one_line_of_several_has_the_facts(fresh: Wording) -> None:
    lines = ["rank 1: no trace", "rank 2: no trace", "rank 12: killed"]
    fresh.among(lines, "rank 1")
    fresh.among("\n".join(lines), "rank 12", "killed")
    for facts in (("rank 3",), ("rank 1", "killed"), ("no trace",), ()):
        with pytest.raises(AssertionError):
            fresh.among(lines, *facts)
    with pytest.raises(AssertionError):
        fresh("\n".join(lines), "rank 1")


def of_tests(tests: set[str], words: Words) -> Words:
    return {test: said for test, said in words.items() if test.partition("[")[0] in tests}


@pytest.mark.golden
def test_each_golden_is_one_of_a_test() -> None:
    """`make docs` removes those of tests that are gone."""
    for golden in (ROOT / "tests").rglob("golden/test_*.json"):
        module = golden.parent.parent / f"{golden.stem}.py"
        tests = {*TEST.findall(module.read_text("utf-8"))}
        if os.environ.get("CHOPPER_UPDATE_GOLDENS"):
            rewrite(golden, partial(of_tests, tests))
        words = json.loads(golden.read_text("utf-8"))
        assert words == of_tests(tests, words), golden
