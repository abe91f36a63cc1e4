"""Files and streams: whole or not at all, and never a traceback."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from traincast.errors import OutputFileError
from traincast.report.files import write_text


def run(*argv: str, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "traincast", *argv]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.run(command, text=True, check=False, timeout=120, **options)


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("existing", [False, True])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, existing: bool) -> None:
    file = tmp_path / "graph.json"
    if existing:
        file.write_text("old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OutputFileError, match="No space left on device"):
        write_text(file, "new")
    assert [f.read_text() for f in tmp_path.iterdir()] == ["old"] * existing


def test_a_full_disk_is_one_message(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", full_disk)
    file = tmp_path / "step.json"
    cli("predict", "resnet18", "--trace", file).refused(str(file), "No space left on device")
    cli("models", "export", "resnet18", "-o", file).refused(str(file), "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_file_behind_a_link_is_replaced_and_the_link_kept(tmp_path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    write_text(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_read_only_folder_is_named_before_any_work(cli, tmp_path) -> None:
    tmp_path.chmod(0o500)
    cli("predict", "resnet18", "--trace", tmp_path / "x.json").refused("read-only")


def test_a_folder_as_trace_is_refused(cli, tmp_path) -> None:
    cli("predict", "resnet18", "--trace", tmp_path).refused(str(tmp_path), "is a folder")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_behind_standard_output(options: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        found = run("predict", "resnet18", *options, stdout=full)
    assert found.returncode == 2
    assert found.stderr == "traincast: cannot write the output: No space left on device\n"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"'{sys.executable}' -m traincast devices --json | head -n 1"
    found = run_shell(command)
    assert (found.stdout, found.stderr) == ("[\n", "")


def test_closed_streams_are_no_error() -> None:
    assert run_shell(f"'{sys.executable}' -m traincast predict resnet18 >&-").returncode == 0
    assert run_shell(f"'{sys.executable}' -m traincast predict nosuch 2>&-").returncode == 2


def run_shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120
    )


def test_a_terminal_without_unicode_gets_replacements() -> None:
    found = run("predict", "resnet18", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert found.returncode == 0
    assert found.stdout.isascii()
    assert "Throughput" in found.stdout


def test_piped_output_has_no_colour_and_no_trailing_spaces() -> None:
    found = run("predict", "resnet18")
    assert (found.returncode, found.stderr) == (0, "")
    assert "\x1b" not in found.stdout
    assert not any(line.endswith(" ") for line in found.stdout.splitlines())


def test_json_is_one_document() -> None:
    found = run("predict", "resnet18", "--json")
    assert json.loads(found.stdout)["parameters"] == 11_689_512  # torchvision's documentation


def test_brackets_in_a_users_names_are_shown_as_they_are(cli, tmp_path) -> None:
    graph = json.loads(cli("models", "export", "resnet18").out)
    file = tmp_path / "graph.json"
    file.write_text(json.dumps({**graph, "name": "net[bold]:smile:"}))
    assert "net[bold]:smile:" in cli("predict", file).out


def test_exit_status_of_bad_usage() -> None:
    found = run("predict", "resnet18", "--nosuch")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("traincast: unknown option --nosuch")


LIGHT = """
import sys
from traincast.cli import main
status = main({argv!r})
heavy = [m for m in ("numpy", "pydantic", "torch", "scipy", "onnx") if m in sys.modules]
print(status, heavy, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("argv", "loaded"),
    [
        (["--help"], []),
        (["predict", "--help"], []),
        (["models", "--help"], []),
        (["devices", "show", "--help"], []),
        (["models"], ["numpy"]),
        (["predict", "resnet18"], ["numpy", "pydantic"]),
    ],
)
def test_commands_import_no_more_than_they_need(argv: list[str], loaded: list[str]) -> None:
    found = subprocess.run(
        [sys.executable, "-c", LIGHT.format(argv=argv)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    status, _, heavy = found.stderr.strip().partition(" ")
    assert status == "0"
    assert set(json.loads(heavy.replace("'", '"'))) <= set(loaded)


def test_the_test_above_can_fail() -> None:
    code = "import numpy\n" + LIGHT.format(argv=["--help"])
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert "numpy" in found.stderr
