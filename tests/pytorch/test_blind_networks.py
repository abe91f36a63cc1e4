"""Networks by another hand, who knew nothing of tracing: priced in full, with PyTorch's FLOPs."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch runs the networks")

from ours import figures
from reference import measure

from traincast.graph.kinds.special import SPECIAL
from traincast.ingest.pytorch.functions import function_source
from traincast.ingest.pytorch.probe import trace_source

FILE = Path(__file__).parents[2] / "benchmarks/data/h200/blind.py"
BATCH = 4
RECURRENT = 2 * BATCH * 128 * 2 * 4 * 420 * ((336 + 420) + 2 * (840 + 420))
"""FLOPs of the tagger's three LSTM layers, which PyTorch's counter does not see: at 128 positions
in two directions, four gates of 420 units from the layer's input and from the units themselves."""


def builders() -> list[str]:
    spec = importlib.util.spec_from_file_location("blind", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = inspect.getmembers(module, inspect.isfunction)
    return [name for name, function in made if "batch" in inspect.signature(function).parameters]


@pytest.mark.parametrize("name", builders())
@pytest.mark.filterwarnings("ignore")
def test_a_network_by_another_hand(name: str) -> None:
    source = function_source(str(FILE), name, {}, None)
    graph = trace_source(source, batch=BATCH)
    assert {op.attrs["fn"] for op in graph.ops if op.kind == "unknown"} <= SPECIAL.keys()
    assert graph.fixed == ()
    real = measure(source, BATCH, 0, torch.float32)
    ours = figures(graph, BATCH, 0, "fp32")
    uncounted = RECURRENT if name == "lstm_tagger" else 0
    assert ours.forward_flops == real.forward_flops + uncounted
    assert ours.backward_flops == real.backward_flops + 2 * uncounted
