"""The built-in catalog: it is well-formed, cited, found by name, and right by arithmetic."""

from __future__ import annotations

import itertools
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import UnknownNameError
from traincast.hardware import (
    all_devices,
    all_links,
    device_names,
    link_names,
    load_device,
    load_link,
    resolve_device_name,
)
from traincast.hardware.lookup import CATALOG
from traincast.hardware.names import fold

NUMBERS = ("memory_bytes", "usable_bytes", "memory_bandwidth", "units", "clock_hz", "l2_bytes")


def test_every_device_reads_and_cites_each_of_its_figures() -> None:
    devices = all_devices()
    assert len(devices) >= 75
    for device in devices:
        figures = [f for f in (*NUMBERS, "power_w") if getattr(device, f) is not None]
        figures += [f"matrix_flops.{p}" for p in device.matrix_flops]
        figures += [f"vector_flops.{p}" for p in device.vector_flops]
        uncited = [f for f in figures if len(device.sources.get(f, "")) < 8]
        assert not uncited, (device.name, uncited)
        assert not [s for s in device.sources.values() if s.startswith("stated in")], device.name
        assert 2005 <= device.year <= 2030
        for name in (device.link, device.host_link, device.network):
            assert name is None or name in link_names()


def test_every_link_reads_and_cites_its_figures() -> None:
    for link in all_links():
        assert link.sources.keys() == {"latency_s", "bandwidth"}
        assert not [s for s in link.sources.values() if s.startswith("stated in")], link.name
        assert 1e-8 < link.latency_s < 1e-3
        assert 1e8 <= link.bandwidth < 2e12


def test_the_table_of_aliases_says_what_the_files_say() -> None:
    table = tomllib.loads((CATALOG / "aliases.toml").read_text(encoding="utf-8"))
    assert table == {alias: device.name for device in all_devices() for alias in device.aliases}


def test_no_two_names_fold_to_the_same() -> None:
    names = [n for device in all_devices() for n in (device.name, *device.aliases)]
    assert len({fold(name) for name in names}) == len(names)
    links = [n for link in all_links() for n in (link.name, *link.aliases)]
    assert len({fold(name) for name in links}) == len(links)


@pytest.mark.parametrize(
    ("ref", "name"),
    [
        ("h200", "h200"),
        ("NVIDIA H200", "h200"),
        ("nvidia_h200", "h200"),
        ("A100", "a100-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla P100-SXM2-16GB", "p100"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("3090", "rtx-3090"),
        ("rtx3090", "rtx-3090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("GeForce GTX TITAN X", "titan-x"),
        ("TPU v4", "tpu-v4"),
        ("EPYC_7742", "epyc-7742"),
        ("Xeon Platinum 8480+", "xeon-8480plus"),
        ("Xeon Phi 7120P", "xeon-phi-7120p"),
    ],
)
def test_a_device_is_found_under_the_names_people_use(ref: str, name: str) -> None:
    assert resolve_device_name(ref) == name
    assert load_device(ref).name == name


@given(name=st.sampled_from(device_names()), data=st.data())
def test_case_and_separators_do_not_count(name: str, data: st.DataObject) -> None:
    drawn = [
        data.draw(
            st.sampled_from(["-", "_", " ", ""]) if c == "-" else st.sampled_from([c, c.upper()])
        )
        for c in name
    ]
    assert resolve_device_name("".join(drawn)) == name


def test_an_unknown_name_says_the_near_ones_and_the_way_out() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_device("h1000")
    assert "unknown device 'h1000'; did you mean h100" in str(caught.value)
    assert "traincast devices" in str(caught.value)
    with pytest.raises(UnknownNameError, match="unknown link 'nvlink9'; did you mean nvlink"):
        load_link("nvlink9")


def test_a_loaded_device_is_passed_through_and_cached() -> None:
    device = load_device("h200")
    assert load_device(device) is device
    assert load_device("NVIDIA H200") is device
    link = load_link("NVLink4")
    assert load_link(link) is link
    assert load_link("hdr").name == "infiniband-hdr"
    assert load_link("100gbe").name == "ethernet-100g"


# Operations a cycle and unit, from the makers' descriptions of one multiprocessor, compute unit or
# core: lanes × 2 for a multiply-add.
ARITHMETIC = [
    ("k40", "vector", "fp32", 192 * 2),  # GK110 whitepaper: 192 fp32 lanes a multiprocessor
    ("k80", "vector", "fp64", 64 * 2),
    ("titan-x", "vector", "fp32", 128 * 2),
    ("p100", "vector", "fp32", 64 * 2),  # GP100: 64 fp32 lanes, each also two fp16
    ("p100", "vector", "fp16", 64 * 2 * 2),
    ("v100", "vector", "fp32", 64 * 2),
    ("v100", "matrix", "fp16", 8 * 64 * 2),  # 8 tensor cores of 4×4×4 multiply-adds
    ("t4", "matrix", "fp16", 8 * 64 * 2),
    ("rtx-2080-ti", "matrix", "fp16", 8 * 64 * 2 / 2),  # halved with fp32 accumulation
    ("a100-80gb", "vector", "fp32", 64 * 2),
    ("a100-80gb", "matrix", "bf16", 4 * 256 * 2),  # 4 tensor cores of 8×4×8
    ("a100-80gb", "matrix", "tf32", 4 * 128 * 2),
    ("rtx-3090", "vector", "fp32", 128 * 2),
    ("rtx-3090", "matrix", "bf16", 4 * 128 * 2 / 2),
    ("rtx-4090", "matrix", "bf16", 4 * 128 * 2 / 2),
    ("h100", "vector", "fp32", 128 * 2),
    ("h200", "vector", "fp32", 128 * 2),
    ("mi100", "matrix", "fp16", 4 * 128 * 2),
    ("mi250x", "vector", "fp64", 64 * 2),
    ("mi300x", "matrix", "bf16", 4 * 256 * 2),
    ("mi355x", "matrix", "fp16", 4 * 512 * 2),
    ("max-1550", "vector", "fp32", 8 * 16 * 2),  # 8 engines of 512 bits
    ("gaudi3", "matrix", "bf16", 8 * 256 * 256 * 2 / 64),  # 8 engines, shared by 64 cores
    ("tpu-v2", "matrix", "bf16", 128 * 128 * 2),  # one 128×128 array a core
    ("tpu-v3", "matrix", "bf16", 2 * 128 * 128 * 2),
    ("tpu-v4", "matrix", "bf16", 4 * 128 * 128 * 2),
    ("xeon-phi-7120p", "vector", "fp32", 16 * 2),
    ("xeon-e5-2695-v2", "vector", "fp32", 8 + 8),  # AVX: an addition and a multiplication of 8
    ("xeon-8180", "vector", "fp32", 2 * 16 * 2),
    ("epyc-7742", "vector", "fp64", 2 * 4 * 2),
    ("core-i5-661", "vector", "fp32", 4 + 4),
]


@pytest.mark.parametrize(("name", "unit", "precision", "per_cycle"), ARITHMETIC)
def test_a_peak_is_units_times_lanes_times_clock(
    name: str, unit: str, precision: str, per_cycle: float
) -> None:
    device = load_device(name)
    peaks = device.matrix_flops if unit == "matrix" else device.vector_flops
    assert peaks[precision] == pytest.approx(device.units * per_cycle * device.clock_hz, rel=0.02)


def test_hopper_states_its_matrix_peaks_at_a_lower_clock() -> None:
    # 132 multiprocessors × 4 tensor cores × 512 multiply-adds at 1.83 GHz, H100 whitepaper.
    assert load_device("h100").matrix_flops["bf16"] == pytest.approx(132 * 4096 * 1.83e9, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "bits", "gigabits_per_pin"),
    [
        ("p100", 4096, 1.43),  # four HBM2 stacks
        ("a100-40gb", 5120, 2.43),
        ("h200", 6016, 6.402),  # the bus width and memory clock that the driver reports
        ("rtx-3090", 384, 19.5),
        ("rtx-5090", 512, 28.0),
        ("t4", 256, 10.0),
        ("xeon-8480plus", 8 * 64, 4.8),  # eight channels of DDR5-4800
        ("epyc-7742", 8 * 64, 3.2),
    ],
)
def test_bandwidth_is_bus_width_times_rate(name: str, bits: int, gigabits_per_pin: float) -> None:
    bandwidth = load_device(name).memory_bandwidth
    assert bandwidth == pytest.approx(bits / 8 * gigabits_per_pin * 1e9, rel=0.01)


def test_no_figure_with_sparsity_has_slipped_in() -> None:
    """16-bit products run at most at twice the tf32 rate (4 on Gaudi 3), 8-bit at twice or so."""
    for device in all_devices():
        peaks = device.matrix_flops
        if device.vendor != "NVIDIA" or "tf32" not in peaks:
            continue
        assert peaks["bf16"] == pytest.approx(2 * peaks["tf32"], rel=0.02), device.name
        assert peaks["bf16"] == peaks["fp16"], device.name
        if "fp8" in peaks:
            assert peaks["fp8"] == pytest.approx(2 * peaks["bf16"], rel=0.02), device.name


def test_the_links_of_a_generation_double() -> None:
    pcie = [load_link(f"pcie{g}-x16").bandwidth for g in range(2, 7)]
    assert all(1.9 < b / a < 2.01 for a, b in itertools.pairwise(pcie))
    nvlink = [load_link(f"nvlink{g}").bandwidth / 1e9 for g in range(1, 6)]
    assert nvlink == [80, 150, 300, 450, 900]
    for gigabits in (1, 10, 20, 25, 40, 50, 100, 200, 400, 800):
        assert load_link(f"ethernet-{gigabits}g").bandwidth == gigabits * 1e9 / 8
