"""GPUs by their names, and their peaks as the vendors publish them."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.model.hardware import ElementType, hardware_of, specifications
from chopper_core.util.errors import DataError


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    specifications.cache_clear()
    hardware_of.cache_clear()
    path = tmp_path / "chopper/hardware.toml"
    path.parent.mkdir()
    yield path
    monkeypatch.undo()
    specifications.cache_clear()
    hardware_of.cache_clear()


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("AMD Instinct MI308X", None),
        ("AMD Instinct MI300A", "MI300A"),
        ("AMD Instinct MI250X", "MI250X-GCD"),
        ("AMD Instinct MI250X/MI250", "MI250X-GCD"),
        ("AMD Instinct MI250", "MI250-GCD"),
        ("AMD Instinct MI210", "MI210"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2"),
        ("Tesla V100-PCIE-16GB", "V100-PCIe"),
        ("Tesla V100-SXM3-32GB", None),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA H200", "H200-SXM"),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA B200", "B200-SXM"),
        ("NVIDIA GB200", None),
        ("", None),
    ],
)
def test_a_product_s_name_means_one_gpu_or_none(product: str, name: str | None) -> None:
    found = hardware_of(product)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("product", "tflops"),
    [
        ("MI300X", {"fp64": 163.4, "fp32": 163.4, "tf32": 653.7, "bf16": 1307.4, "fp8": 2614.9}),
        ("MI350X", {"fp64": 72.1, "fp32": 144.2, "bf16": 2306.9, "fp8": 4613.7, "fp4": 9227}),
        ("MI355X", {"fp64": 78.6, "fp32": 157.3, "bf16": 2516.6, "fp8": 5033.2, "fp4": 10066}),
        ("MI250X", {"fp64": 95.7 / 2, "fp32": 95.7 / 2, "bf16": 191.5, "int8": 191.5}),
        ("MI250", {"fp64": 90.5 / 2, "fp16": 362.1 / 2}),
        ("MI210", {"fp64": 45.3, "fp32": 45.3, "fp16": 181, "int8": 181}),
        ("V100-SXM2", {"fp64": 7.8, "fp32": 15.7, "fp16": 125}),
        ("V100-PCIE", {"fp64": 7, "fp32": 14, "fp16": 112}),
        ("A100-SXM4-80GB", {"fp64": 19.5, "fp32": 19.5, "tf32": 156, "bf16": 312, "int8": 624}),
        ("H100", {"tf32": 494.7, "bf16": 989.4, "fp8": 1978.9, "int8": 1978.9}),
        ("H200", {"tf32": 494.7, "bf16": 989.4, "fp8": 1978.9, "int8": 1978.9}),
        ("B200", {"bf16": 2250, "fp8": 4500, "fp4": 9000}),
    ],
)
def test_peaks_are_the_published_dense_ones(product: str, tflops: dict[str, float]) -> None:
    gpu = hardware_of(product)
    assert gpu is not None
    for name, published in tflops.items():
        peak = gpu.flop_per_ns(ElementType[name.upper()]) * 1e-3
        assert peak == pytest.approx(published, rel=6e-3), name
    assert isnan(gpu.flop_per_ns(ElementType.UNKNOWN))


def test_nvidia_s_fp32_is_at_the_clock_of_the_matrix_units() -> None:
    """Published are 66.9 TFLOP/s at 1980 MHz; the breakdown is at 1830."""
    gpu = hardware_of("H100")
    assert gpu is not None
    for element in (ElementType.FP32, ElementType.FP64):
        assert gpu.flop_per_ns(element) * 1e-3 == pytest.approx(66.9 * 1830 / 1980, rel=1e-3)


def test_every_gpu_has_sources_and_plausible_figures() -> None:
    for gpu in specifications().values():
        assert gpu.sources and all(gpu.sources), gpu.name
        assert 16 <= gpu.compute_units <= 512 and 1_000 <= gpu.clock_mhz <= 2_500
        assert 900 <= gpu.memory_gbps <= 8_000 and 250 <= gpu.tdp_w <= 1_400
        assert hash(gpu) == hash(replace(gpu, flop_per_clk_cu={}))


def test_a_person_s_own_file_adds_and_overrides(own: Path) -> None:
    own.write_text(
        '[MI300X]\ntdp_w = 600\n[Mine]\nmatch = ["Mine 9"]\narch = "gfx1"\ncompute_units = 2\n'
        "simds_per_cu = 4\nxccs = 1\nclock_mhz = 1000\nflop_per_clk_cu = { bf16 = 64 }\n"
        "memory_gbps = 10\ntdp_w = 5\n"
    )
    mine, known = hardware_of("My Mine 9 GPU"), hardware_of("MI300X")
    assert mine is not None and known is not None
    assert (known.tdp_w, known.compute_units) == (600, 304)
    assert mine.flop_per_ns(ElementType.BF16) == 2 * 64 * 1.0
    times = mine.at_peak_ns(np.array([256.0, 256.0, 256.0]), np.array([ElementType.BF16,
                            ElementType.FP32, np.nan]))  # fmt: skip
    assert times[0] == 2 and np.isnan(times[1:]).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[MI300X", "can't be read"),
        ("[MI300X]\nflop_per_clk_cu = { bf17 = 64 }", "'bf17' is not one of the types fp64"),
        (
            "[MI300X]\nflop_per_clk_cu = { bf16 = 0 }",
            "every flop_per_clk_cu must be a number above 0",
        ),
        ("[MI300X]\nflop_per_clk_cu = 64", "invalid specification of MI300X"),
        ("[MI300X]\nbf16_flop_per_clk_cu = 64", "bf16_flop_per_clk_cu"),
        ('[Mine]\nmatch = ["Mine"]', "invalid specification of Mine"),
    ],
)
def test_a_broken_file_of_one_s_own_is_named(own: Path, text: str, said: str) -> None:
    own.write_text(text)
    with pytest.raises(DataError, match=said) as caught:
        specifications()
    assert str(own) in str(caught.value)


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("AMD Instinct MI300X", "MI300X"),
        ("MI300X", "MI300X"),
        ("amd-MI300X_OAM", "MI300X"),
        ("AMD MI300XL", None),
        ("AMI300X", None),
        ("MI300XL, in truth an MI300X", "MI300X"),
        ("MI250X/MI250", "MI250X-GCD"),
        ("", None),
    ],
)
def test_a_product_is_named_by_a_word_of_its_own(product: str, name: str | None) -> None:
    found = hardware_of(product)
    assert (found and found.name) == name
