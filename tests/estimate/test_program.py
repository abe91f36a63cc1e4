"""A graph in one precision: gradients of several readers, classes of equal ops, lifetimes."""

from __future__ import annotations

import numpy as np

from traincast.estimate.program import kernels_of, program_of
from traincast.graph import Graph, Op, Size, Tensor, verify
from traincast.graph.precision import PRECISIONS
from traincast.ingest import zoo_graph

FP32 = PRECISIONS["fp32"]
B = Size(batch=1)


def residual(layers: int) -> Graph:
    """x → linear, then `layers` times h + relu(h)."""
    tensors = {
        "x": Tensor(name="x", shape=(B, Size(8)), role="input"),
        "w": Tensor(name="w", shape=(Size(8), Size(8)), role="parameter"),
        "h0": Tensor(name="h0", shape=(B, Size(8))),
    }
    ops = [Op(name="in", kind="linear", inputs=("x", "w"), outputs=("h0",))]
    for i in range(layers):
        for name in (f"r{i}", f"h{i + 1}"):
            tensors[name] = Tensor(name=name, shape=(B, Size(8)))
        ops += [
            Op(
                name=f"relu{i}",
                kind="pointwise",
                inputs=(f"h{i}",),
                outputs=(f"r{i}",),
                attrs={"fn": "relu"},
            ),
            Op(
                name=f"add{i}",
                kind="pointwise",
                inputs=(f"h{i}", f"r{i}"),
                outputs=(f"h{i + 1}",),
                attrs={"fn": "add"},
            ),
        ]
    return verify(Graph(name="residual", ops=tuple(ops), tensors=tensors, batch=2))


def test_a_value_with_two_readers_gets_one_sum_of_gradients() -> None:
    """Each of h0, h1, h2 is read by a relu and by an addition; the last by nobody."""
    program = program_of(residual(3), FP32)
    assert [n for n in program.names if n.endswith(".grad")] == ["h0.grad", "h1.grad", "h2.grad"]
    kernels = kernels_of(program, 2, 0)
    adds = [i for i, n in enumerate(kernels.names) if n == "add" and kernels.phase[i] == 1]
    # All three are of one class, so the table has it once: two reads and a write of 2 × 8 floats.
    assert len(adds) == 1
    assert kernels.read[adds[0]] == 2 * 64
    assert kernels.write[adds[0]] == 64


def test_alike_ops_form_one_class() -> None:
    few, many = (program_of(residual(n), FP32) for n in (1, 100))
    assert len(many.names) - len(few.names) == 3 * 99
    # relu0 reads what a linear layer makes and relu1 what an addition makes: no difference.
    assert len(many.classes) == len(few.classes)


def test_a_program_is_made_once_for_each_precision() -> None:
    made = residual(1)
    assert program_of(made, FP32) is program_of(made, FP32)
    assert program_of(made, FP32) is not program_of(made, PRECISIONS["bf16"])


def test_lifetimes_of_values() -> None:
    program = program_of(residual(1), FP32)
    assert program.names == ("in", "h0.grad", "relu0", "add0")
    found = {(v.made, v.last, v.kept) for v in program.values}
    assert found == {
        (-1, 0, 0),  # x: kept for the weight's gradient
        (0, 3, -1),  # h0: read by relu and addition, kept by neither
        (2, 3, 2),  # r0: relu keeps its output
        (3, 3, -1),  # h1
    }


def test_views_share_the_memory_of_their_base() -> None:
    tensors = {
        "x": Tensor(name="x", shape=(B, Size(8)), role="input"),
        "w": Tensor(name="w", shape=(Size(8), Size(8)), role="parameter"),
        "h": Tensor(name="h", shape=(B, Size(8))),
        "v": Tensor(name="v", shape=(B, Size(2), Size(4))),
        "y": Tensor(name="y", shape=(B, Size(2), Size(4))),
    }
    ops = (
        Op(name="in", kind="linear", inputs=("x", "w"), outputs=("h",)),
        Op(name="view", kind="view", inputs=("h",), outputs=("v",), attrs={"fn": "reshape"}),
        Op(name="act", kind="pointwise", inputs=("v",), outputs=("y",), attrs={"fn": "gelu"}),
    )
    program = program_of(verify(Graph(name="g", ops=ops, tensors=tensors)), FP32)
    inner = [v for v in program.values if v.made >= 0]
    # h with its view, kept by gelu (op 2); and y.
    assert [(v.made, v.last, v.kept) for v in inner] == [(0, 2, 2), (2, 2, -1)]


def test_a_parameter_gradient_appears_at_its_first_use() -> None:
    program = program_of(zoo_graph("gpt2"), FP32)
    tied = program.parameter_op["transformer.wte.weight"]
    linears = [i for i, c in enumerate(program.op_class) if program.classes[c].kind == "linear"]
    assert tied < min(linears)


def test_kernels_scale_with_the_batch() -> None:
    """Every kernel of an elementwise op moves bytes in proportion to the batch."""
    program = program_of(residual(2), FP32)
    one, ten = kernels_of(program, 1, 0), kernels_of(program, 10, 0)
    pointwise = np.array([program.classes[i].kind == "pointwise" for i in one.op_class])
    assert np.allclose(ten.read[pointwise], 10 * one.read[pointwise])
    assert np.allclose(ten.flops, 10 * one.flops)
