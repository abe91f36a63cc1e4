"""The command line on networks that PyTorch has to run."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="tracing a module needs torch")

MODEL = """
import torch
print("loading")
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(32, 10)
    def forward(self, x):
        print("running")
        return self.out(x)
def build(batch):
    print("building")
    return Net(), torch.zeros(batch, 32)
def scan(batch, seq):
    class Scan(Net):
        def forward(self, x):
            for step in range(x.shape[1]):
                last = super().forward(x[:, step])
            return last
    return Scan(), torch.zeros(batch, seq, 32)
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(MODEL)
    return f"{tmp_path / 'model.py'}"


def test_what_a_model_prints_does_not_spoil_the_output(cli, model) -> None:
    found = cli("predict", f"{model}:build", "--json")
    assert found.data["parameters"] == 330  # 32 · 10 weights and 10 biases
    assert {"loading", "building", "running"} <= set(found.err.split())


def test_nothing_is_said_while_tracing_into_a_pipe(cli, model) -> None:
    assert "tracing" not in cli("predict", f"{model}:build").err


def test_a_terminal_shows_what_is_being_traced(model, tmp_path) -> None:
    terminal, child = pty.openpty()
    command = [sys.executable, "-m", "traincast", "predict", f"{model}:build", "--json"]
    with (tmp_path / "out.json").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=child)
        os.close(child)
        shown = b""
        with os.fdopen(terminal, "rb", buffering=0) as reader:
            try:
                while chunk := reader.read(4096):
                    shown += chunk
            except OSError:  # how Linux says that the other side is gone
                pass
    assert process.wait(timeout=120) == 0
    assert "tracing" in shown.decode()
    assert "model.py:build" in "".join(shown.decode().split())
    assert json.loads((tmp_path / "out.json").read_text())["parameters"] == 330


def test_wrong_names_are_found_before_the_model_is_traced(cli, model) -> None:
    for option in ("--device", "--precision", "--optimizer", "--layout", "--estimator"):
        found = cli("predict", f"{model}:build", option, "nosuch")
        found.refused("'nosuch'")
        assert "loading" not in found.err
    found = cli("predict", f"{model}:build", "--trace", "/nosuch/x.json")
    assert "loading" not in found.err


def test_a_scan_is_predicted_at_the_length_given(cli, model) -> None:
    data = cli("predict", f"{model}:scan", "--json").data
    assert any("the sequence length is held at 512" in note for note in data["notes"])
    data = cli("predict", f"{model}:scan", "--seq", "9", "-b", "4", "--json").data
    assert data["forward_flops"] == 4 * 9 * 640  # 2 · 32 · 10 a position
    assert any("held at 9" in note for note in data["notes"])
    assert cli("models", "show", f"{model}:scan", "--seq", "9", "--json").data["fixed"] == ["seq"]


@pytest.mark.parametrize("reference", ["build", "scan"])
def test_an_exported_trace_predicts_the_same(cli, model, tmp_path, reference: str) -> None:
    file = tmp_path / "graph.json"
    seq = ["--seq", "9"] if reference == "scan" else []
    assert cli("models", "export", f"{model}:{reference}", *seq, "-o", file).status == 0
    for batch in ("3", "64"):
        from_file = cli("predict", file, *seq, "-b", batch, "--json").data
        assert from_file == cli("predict", f"{model}:{reference}", *seq, "-b", batch, "--json").data


def test_an_error_in_a_users_file_names_its_line(cli, tmp_path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("import torch\ndef build():\n    raise ValueError('no data here')\n")
    cli("predict", f"{file}:build").refused(f"{file}:3", "ValueError: no data here")


def test_images_are_not_for_text(cli) -> None:
    if find_spec("transformers") is None:
        pytest.skip("bert-base is built with transformers")
    cli("predict", "bert-base", "--image", "224").refused("bert-base takes text", "image")


def test_another_image_size_of_a_built_in_network(cli) -> None:
    if find_spec("torchvision") is None:
        pytest.skip("resnet18 is built with torchvision")
    data = cli("predict", "resnet18", "--image", "64", "-b", "1", "--json").data
    assert data["parameters"] == 11_689_512  # torchvision's documentation
