"""Device and link files that people write: bases, defaults, and every way to get one wrong."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traincast.errors import InputFileError
from traincast.hardware import load_device, load_link

SMALL = """\
title = "My GPU"
memory = "16 GiB"
memory_bandwidth = "400 GB/s"
[vector_flops]
fp32 = "10 TFLOP/s"
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def problems_of(path: str) -> list[str]:
    with pytest.raises(InputFileError) as caught:
        load_device(path)
    assert caught.value.path == path
    return caught.value.problems


def test_a_small_file_gets_sensible_defaults_that_say_so(tmp_path: Path) -> None:
    device = load_device(write(tmp_path, SMALL))
    assert (device.name, device.title, device.tier) == ("mine", "My GPU", "datacenter-gpu")
    assert device.memory_bytes == 16 * 2**30
    assert device.sources["memory_bytes"] == "stated in mine.toml"
    # 10 TFLOP/s at the assumed 1.5 GHz and 256 operations a cycle: 26 multiprocessors.
    assert (device.units, device.clock_hz) == (26, 1.5e9)
    assert device.sources["units"].startswith("assumed")
    assert device.host_link == "pcie4-x16"


def test_a_file_may_state_everything(tmp_path: Path) -> None:
    text = """\
name = "acme-2"
title = "ACME 2"
vendor = "ACME"
tier = "accelerator"
architecture = "two"
year = 2026
memory = "64 GiB"
usable_memory = "63 GiB"
memory_bandwidth = "2 TB/s"
units = 32
clock = "1.2 GHz"
l2 = "32 MiB"
power = "350 W"
link = "NVLink4"
host_link = "pcie5-x16"
network = "ib-ndr"
network_ports = 2
node_devices = 4
aliases = ["acme"]
notes = "A toy."
[matrix_flops]
bf16 = "400 TFLOP/s"
[vector_flops]
fp32 = "20 TFLOP/s"
[sources]
"*" = "ACME datasheet"
clock = "ACME forum"
"matrix_flops.bf16" = "ACME whitepaper"
"""
    device = load_device(write(tmp_path, text))
    assert (device.name, device.link, device.network) == ("acme-2", "nvlink4", "infiniband-ndr")
    assert device.sources["clock_hz"] == "ACME forum"
    assert device.sources["matrix_flops.bf16"] == "ACME whitepaper"
    assert device.sources["vector_flops.fp32"] == "ACME datasheet"
    assert device.available_bytes == 63 * 2**30


def test_a_base_keeps_what_the_file_does_not_say(tmp_path: Path) -> None:
    text = """\
base = "NVIDIA H100"
memory = "96 GiB"
[matrix_flops]
bf16 = "800 TFLOP/s"
[sources]
"*" = "my own board"
"""
    mine, h100 = load_device(write(tmp_path, text)), load_device("h100")
    assert mine.memory_bytes == 96 * 2**30
    assert mine.matrix_flops == {**h100.matrix_flops, "bf16": 800e12}
    assert mine.vector_flops == h100.vector_flops
    assert (mine.link, mine.units) == (h100.link, h100.units)
    assert mine.aliases == ()
    assert mine.sources["memory_bytes"] == mine.sources["matrix_flops.bf16"] == "my own board"
    assert mine.sources["matrix_flops.fp16"] == h100.sources["matrix_flops.fp16"]


def test_a_new_capacity_drops_the_base_s_usable_memory(tmp_path: Path) -> None:
    mine = load_device(write(tmp_path, 'base = "h100"\nmemory = "96 GiB"\n'))
    assert mine.available_bytes == 96 * 2**30


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    first = load_device(path)
    assert load_device(path) is first
    write(tmp_path, SMALL.replace("400 GB/s", "4000 GB/s"))
    assert load_device(path).memory_bandwidth == 4e12


def test_everything_wrong_with_a_file_is_said_at_once(tmp_path: Path) -> None:
    text = """\
titel = "My GPU"
tier = "gpu"
year = "2024"
memory = 80
memory_bandwidth = "80 GB"
units = 0
clock = "-1 GHz"
link = "nvlink9"
[matrix_flops]
bf15 = "3 TFLOP/s"
fp16 = "-3 TFLOP/s"
fp8 = "a lot"
[sources]
memry = "somewhere"
"""
    found = problems_of(write(tmp_path, text))
    expected = [
        'title is missing; add title = "My accelerator"',
        "unknown field 'titel'; did you mean title",
        "tier = 'gpu' is not known; did you mean tpu",
        "year = '2024': input should be a valid integer",
        'memory = 80: has to be quoted text with its unit (bytes); write memory = "80 GiB"',
        "memory_bandwidth: '80 GB' has the unit 'GB', expected bytes/s; write 3.35 TB/s",
        "units = 0: input should be greater than or equal to 1",
        "clock: '-1 GHz' has to be above zero; write clock = \"1.98 GHz\"",
        "link: unknown link 'nvlink9'; did you mean nvlink",
        "matrix_flops has no precision 'bf15'; did you mean bf16?",
        "matrix_flops.fp16: '-3 TFLOP/s' has to be above zero",
        "matrix_flops.fp8: 'a lot' is not a quantity in FLOP/s; write 989 TFLOP/s",
        "sources.'memry' cites no field; did you mean memory",
    ]
    for start in expected:
        assert [p for p in found if p.startswith(start)], (start, found)
    assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "memory is missing; add memory ="),
        ("", "no peak is given; add a table [matrix_flops] or [vector_flops]"),
        (SMALL + "\n[matrix_flops]\n" + 'fp32 = ""', "'' is not a quantity"),
        (SMALL.replace('"My GPU"', '""'), "title = ''"),
        (SMALL.replace("400 GB/s", "-400 GB/s"), "memory_bandwidth: '-400 GB/s' has to be above"),
        (SMALL.replace("400 GB/s", "400"), "'400' has no unit, expected bytes/s"),
        ("vector_flops = 3\n", "vector_flops = 3: input should be a valid dictionary"),
        ("units = true\n" + SMALL, "units = True"),
        ("title = \n", "is not TOML: Invalid value (at line 1"),
        ('a = "b"\nmemory = 80 GB\n', "line 2"),
        ("base = 3\n", "base = 3 is not a name"),
        ('base = "h1000"\n', "base = 'h1000': unknown device 'h1000'; did you mean h100"),
        ('base = "h100"\nmemory = "x"\n', "memory: 'x' is not a quantity in bytes"),
        ('base = "h100"\nmatrix_flops = 1\n', "matrix_flops = 1"),
    ],
)
def test_each_kind_of_mistake_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    assert [p for p in problems_of(path) if said in p], problems_of(path)


def test_files_that_are_not_there_or_not_text(tmp_path: Path) -> None:
    write(tmp_path, SMALL, "my-gpu.toml")
    with pytest.raises(
        InputFileError, match=r"my-gpo\.toml: there is no such file; did you mean my"
    ):
        load_device(str(tmp_path / "my-gpo.toml"))
    with pytest.raises(InputFileError, match=r"the directory .* does not exist either"):
        load_device(str(tmp_path / "nowhere" / "x.toml"))
    with pytest.raises(InputFileError, match="is a directory, not a file; name a"):
        load_device(f"{tmp_path}{os.sep}")
    with pytest.raises(InputFileError, match="lies under a file, not a directory"):
        load_device(str(tmp_path / "my-gpu.toml" / "x.toml"))
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\x89PNG\xff\xfe\x00")
    with pytest.raises(InputFileError, match="is not UTF-8 text"):
        load_device(str(binary))
    with pytest.raises(InputFileError):
        load_device("a\0b.toml")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path, SMALL)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(
        InputFileError, match=r"cannot be read \(Permission denied\); check its perm"
    ):
        load_device(path)


def test_a_link_file(tmp_path: Path) -> None:
    text = 'title = "Mine"\nkind = "fabric"\nlatency = "2 us"\nbandwidth = "100 Gbit/s"\n'
    link = load_link(write(tmp_path, text, "wire.toml"))
    assert (link.name, link.latency_s, link.bandwidth) == ("wire", 2e-6, 12.5e9)
    with pytest.raises(InputFileError) as caught:
        load_link(write(tmp_path, 'kind = "rope"\nlatency = "-1 us"\n', "bad.toml"))
    found = "\n".join(caught.value.problems)
    assert "title is missing" in found
    assert 'bandwidth is missing; add bandwidth = "450 GB/s"' in found
    assert "kind = 'rope' is not known; known: pcie" in found
    assert "latency: '-1 us' has to be zero or more" in found


VALUES: st.SearchStrategy[Any] = st.one_of(
    st.integers(), st.booleans(), st.text("abc 19.GTBFLOP/s-", max_size=12).map(lambda t: f'"{t}"')
)
FIELDS = ["title", "memory", "memory_bandwidth", "units", "clock", "link", "year", "tier", "oops"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(lines=st.dictionaries(st.sampled_from(FIELDS), VALUES))
def test_any_file_is_a_device_or_is_explained(tmp_path: Path, lines: dict[str, Any]) -> None:
    text = "\n".join(f"{k} = {str(v).lower()}" for k, v in lines.items())
    path = write(tmp_path, text + '\n[vector_flops]\nfp32 = "1 TFLOP/s"\n')
    with contextlib.suppress(InputFileError):
        assert load_device(path).memory_bytes > 0
