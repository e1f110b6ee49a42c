"""Settings of runs by the names that jobs, directories and people give them."""

from __future__ import annotations

import pytest

from chopper_core.model.settings import (
    LAYOUT_FROM,
    given_settings,
    in_name,
    in_sweep,
    known_settings,
    setting_name,
)
from chopper_core.util.errors import UsageError


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        (
            "llama3-70b_TP8-PP2_mbs4",
            {"model": "llama3-70b", "tp": 8, "pp": 2, "microbatch": 4},
        ),
        ("Llama-3.1-8B_tp2", {"model": "Llama-3.1-8B", "tp": 2}),
        ("2024-05-01_mixtral_8x22b-instruct_fsdp2", {"model": "mixtral_8x22b-instruct", "fsdp": 2}),
        ("qwen2.5-0.5b_run3", {"model": "qwen2.5-0.5b"}),
        ("tp4pp2_deepseek-v3-671b", {"model": "deepseek-v3-671b", "tp": 4, "pp": 2}),
        (
            "gpt_oss_20b-TP8PP2MBS1-GBS64",
            {"model": "gpt_oss_20b", "tp": 8, "pp": 2, "microbatch": 1, "global_batch": 64},
        ),
        ("fsdp2", {"fsdp": 2}),
        ("gpt_tp8-fsdp", {"tp": 8, "fsdp": "yes"}),
        ("gpt3-175b_2_11000", {"model": "gpt3-175b", "options": "cc+act"}),
        ("gpt3-175b_2_00000", {"model": "gpt3-175b", "options": "base"}),
        ("mixtral-8x7b_1_mbs4", {"model": "mixtral-8x7b", "microbatch": 4}),
        # No settings: an http2 server, a step, a temperature.
        ("http2_step10_c4", {}),
        ("bucket_64mb_run_16bit_5m", {}),
    ],
)
def test_settings_in_names(name: str, settings: dict[str, object]) -> None:
    assert in_name(name) == settings


def test_keys_of_jobs_are_known_by_any_framework() -> None:
    for key in (
        "tensor_model_parallel_size", "tensor-model-parallel-size", "model.tp_size",
        "parallelism.tensor_parallel_degree",
    ):  # fmt: skip
        assert setting_name(key) == "tp"
    assert setting_name("trainer.devices") == ""
    keys = [("tp_size", "${model.tp}"), ("model.name", "llama3"), ("tp", 4), ("mbs", 2)]
    assert known_settings(keys) == {"model": "llama3", "tp": 4, "microbatch": 2}


def test_patterns_and_assignments_the_last_one_counts() -> None:
    given = given_settings(["tp=8,note=x", "gpt*:tp=2"], ["{model}_{tp}-{pp}_{mbs}"])
    assert given.of("sweep/gpt3_4-16_2") == {
        "model": "gpt3", "tp": 2, "pp": 16, "microbatch": 2, "note": "x",
    }  # fmt: skip
    assert given.of("other") == {"tp": 8, "note": "x"}
    # A number is wanted where the setting is one.
    assert given_settings([], ["{model}_{tp}"]).of("llama_big") == {}


@pytest.mark.parametrize(
    ("texts", "patterns", "why"),
    [
        (["tp"], [], "is not SETTING=VALUE"),
        (["tp="], [], "is not SETTING=VALUE"),
        ([], ["plain"], "names no setting"),
        ([], ["{tp}_{tp}"], "names tp twice"),
    ],
)
def test_invalid_settings_are_usage_errors(texts: list[str], patterns: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        given_settings(texts, patterns)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("optimization-sweep-h200/gpt3-175b/gpt3-175b_1_00000", {"tp": 2, "pp": 16}),
        ("optimization-sweep-h200/gpt3-175b/gpt3-175b_3_11000", {"tp": 8, "pp": 4}),
        ("microbatch-sweep-h200/llama3-70b/llama3-70b_2_mbs4", {"tp": 4, "pp": 4}),
        # By the YAML, not by the table of upstream's scripts.
        ("x-h200/mixtral-8x7b_2_00000", {"ep": 4, "tp": 2}),
        ("optimization-sweep-h100/gpt3-175b/gpt3-175b_1_00000", {}),
        ("optimization-sweep-h200/gpt3-175b/gpt3-175b_9_00000", {}),
        ("optimization-sweep-h200/other-7b/other-7b_1_00000", {}),
        ("optimization-sweep-h200/gpt3-175b/gpt3-175b", {}),
    ],
)
def test_an_index_of_a_known_sweep_is_a_layout_that_is_marked(
    path: str, expected: dict[str, int]
) -> None:
    found = in_sweep(path.split("/"))
    mark = found.pop(LAYOUT_FROM, None)
    assert found == expected
    assert (mark is None) == (not expected)
