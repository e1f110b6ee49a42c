"""Settings in the files beside a run: manifests and configurations of jobs."""

from __future__ import annotations

import json
from pathlib import Path

from chopper_core.model.settings import value_of
from chopper_core.sources.settings import read_settings, setting_keys

JOB = """\
# NeMo
name: experiment
trainer:
  devices: 8  # per node
  max_steps: 11
model:
  tensor_model_parallel_size: 2
  'pipeline_model_parallel_size': 16
  micro_batch_size: 1
  global_batch_size: ${mbs}
  encoder_seq_length: 2048
  optim: {name: adam, lr: 1e-4}
  layers:
    - first: 1
"""


def test_the_keys_of_a_job(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    found = dict(setting_keys(path))
    assert found["trainer.devices"] == 8
    assert found["model.pipeline_model_parallel_size"] == 16
    assert found["model.layers.first"] == 1
    assert "model.optim" not in found
    assert read_settings(tmp_path) == {"tp": 2, "pp": 16, "microbatch": 1, "sequence": 2048}


def test_a_manifest_counts_before_the_job(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "job.yml").write_text(JOB)
    manifest = {"tp": 4, "parallel": {"pp_size": 8}, "cooling": "air", "act": True, "tags": ["a"]}
    (tmp_path / "chopper.json").write_text(json.dumps(manifest))
    assert read_settings(tmp_path) == {
        "tp": 4, "pp": 8, "cooling": "air", "act": "yes", "microbatch": 1, "sequence": 2048,
    }  # fmt: skip


def test_what_can_t_be_read_has_no_settings(tmp_path: Path) -> None:
    (tmp_path / "chopper.json").write_text("{")
    (tmp_path / "job.yaml").write_bytes(b"\xff\xfe\x00tp: 2")
    assert read_settings(tmp_path) == {}
    assert read_settings(tmp_path / "nowhere") == {}


def test_numbers_that_no_store_holds_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(f'{{"a": NaN, "b": 1e999, "c": {10**30}, "d": 1.5, "e": {2**62}}}')
    expected = {"a": "nan", "b": "inf", "c": str(10**30), "d": 1.5, "e": 2**62}
    assert dict(setting_keys(path)) == expected
    assert value_of("-1e999") == "-inf"
