"""Autocast: which casts are inserted, in which types ops run, and what that moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from traincast.errors import UnknownNameError
from traincast.estimate.program import Program, kernels_of, program_of
from traincast.graph import Graph, Op, Size, Tensor, verify
from traincast.graph.precision import PRECISIONS, precision_named

AMP = PRECISIONS["amp_bf16"]


def tensor(name: str, *shape: int | str, **options: Any) -> Tensor:
    return Tensor(name=name, shape=tuple(map(Size.parse, shape)), **options)


def op(name: str, kind: str, inputs: str, outputs: str, **attrs: Any) -> Op:
    return Op(
        name=name,
        kind=kind,
        inputs=tuple(inputs.split()),
        outputs=tuple(outputs.split()),
        attrs=attrs,
    )


def graph(tensors: list[Tensor], ops: list[Op]) -> Graph:
    return verify(
        Graph(name="small", ops=tuple(ops), tensors={t.name: t for t in tensors}, batch=2)
    )


def chain() -> Graph:
    """linear → layer_norm → linear → softmax → linear, all 8 features wide."""
    return graph(
        [
            tensor("x", "B", 8, role="input"),
            *(tensor(f"w{i}", 8, 8, role="parameter") for i in (1, 2, 3)),
            tensor("b1", 8, role="parameter"),
            tensor("scale", 8, role="parameter"),
            tensor("shift", 8, role="parameter"),
            *(tensor(n, "B", 8) for n in ("h", "n", "g", "p", "y")),
        ],
        [
            op("one", "linear", "x w1 b1", "h"),
            op("norm", "layer_norm", "h scale shift", "n", axes=1),
            op("two", "linear", "n w2", "g"),
            op("soft", "softmax", "g", "p", axis=-1),
            op("three", "linear", "p w3", "y"),
        ],
    )


def described(program: Program) -> list[tuple[str, list[str], list[str]]]:
    """Return name, input types and output types of every op."""
    found = []
    for name, index in zip(program.names, program.op_class, strict=True):
        cls = program.classes[index]
        found.append((name, [s.dtype for s in cls.ins], [s.dtype for s in cls.outs]))
    return found


LOW, HIGH = "bfloat16", "float32"
CAST_DOWN, CAST_UP = ([HIGH], [LOW]), ([LOW], [HIGH])


def test_casts_of_a_chain_of_products_norms_and_softmax() -> None:
    assert described(program_of(chain(), AMP)) == [
        # Input, weight and bias go down; the product comes out in the low type.
        ("one.autocast", *CAST_DOWN),
        ("one.autocast", *CAST_DOWN),
        ("one.autocast", *CAST_DOWN),
        ("one", [LOW, LOW, LOW], [LOW]),
        # A norm runs in float32, and its parameters are float32 already.
        ("norm.autocast", *CAST_UP),
        ("norm", [HIGH, HIGH, HIGH], [HIGH]),
        ("two.autocast", *CAST_DOWN),
        ("two.autocast", *CAST_DOWN),
        ("two", [LOW, LOW], [LOW]),
        ("soft.autocast", *CAST_UP),
        ("soft", [HIGH], [HIGH]),
        ("three.autocast", *CAST_DOWN),
        ("three.autocast", *CAST_DOWN),
        ("three", [LOW, LOW], [LOW]),
    ]


@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16", "fp16"])
def test_one_type_needs_no_casts(name: str) -> None:
    program = program_of(chain(), PRECISIONS[name])
    assert program.names == ("one", "norm", "two", "soft", "three")
    each = {"fp32": HIGH, "tf32": HIGH, "bf16": LOW, "fp16": "float16"}[name]
    types = {t for _, ins, outs in described(program) for t in (*ins, *outs)}
    assert types == {each}


def bytes_of(program: Program, name: str, batch: int) -> list[tuple[int, float, float]]:
    """Return (phase, read, write) of the kernels of every op of that name."""
    kernels = kernels_of(program, batch, 0)
    found = []
    for at in np.flatnonzero(np.array(program.names) == name):
        rows = np.flatnonzero(kernels.op_class == program.op_class[at])
        found += [(int(kernels.phase[i]), kernels.read[i], kernels.write[i]) for i in rows]
    return found


def test_bytes_of_casts_by_hand() -> None:
    """x is 2 × 8, w1 8 × 8, b1 8: read 4 bytes each, written 2; gradients the other way."""
    program = program_of(chain(), AMP)
    assert bytes_of(program, "one.autocast", 2) == [
        (0, 4 * 16, 2 * 16),  # x, an input: no gradient
        (0, 4 * 64, 2 * 64),
        (1, 2 * 64, 4 * 64),
        (0, 4 * 8, 2 * 8),
        (1, 2 * 8, 4 * 8),
    ]
    assert bytes_of(program, "norm.autocast", 2) == [(0, 2 * 16, 4 * 16), (1, 4 * 16, 2 * 16)]


def test_bytes_of_the_product_between_casts() -> None:
    program = program_of(chain(), AMP)
    assert bytes_of(program, "one", 2) == [
        (0, 2 * (16 + 64 + 8), 2 * 16),
        (2, 2 * (16 + 16), 2 * 64),
        (2, 2 * 16, 2 * 8),
    ]


def test_a_parameter_is_cast_once_however_often_it_is_used() -> None:
    made = graph(
        [
            tensor("x", "B", 8, role="input"),
            tensor("w", 8, 8, role="parameter"),
            tensor("a", "B", 8),
            tensor("b", "B", 8),
        ],
        [op("one", "linear", "x w", "a"), op("two", "linear", "a w", "b")],
    )
    program = program_of(made, AMP)
    # x and w once; the second use finds w cast and a in the low type. Both uses give w a gradient,
    # which are added up in the low type before the cast's own gradient.
    assert [n for n in program.names if not n.startswith("w")] == [
        "one.autocast",
        "one.autocast",
        "one",
        "two",
    ]
    (added,) = [i for i, n in enumerate(program.names) if n.endswith(".grad")]
    spec = program.classes[program.op_class[added]].ins[0]
    assert (spec.dtype, spec.shape) == (LOW, (Size(8), Size(8)))


def test_an_activation_is_cast_again_for_each_reader() -> None:
    """PyTorch's cache holds casts of leaves that need a gradient, nothing else."""
    made = graph(
        [
            tensor("x", "B", 8, role="input"),
            *(tensor(n, 8, 8, role="parameter") for n in ("u", "v")),
            tensor("a", "B", 8),
            tensor("b", "B", 8),
            tensor("y", "B", 8),
        ],
        [
            op("one", "linear", "x u", "a"),
            op("two", "linear", "x v", "b"),
            op("add", "pointwise", "a b", "y", fn="add"),
        ],
    )
    program = program_of(made, AMP)
    assert program.names == (
        *("one.autocast",) * 2,
        "one",
        *("two.autocast",) * 2,
        "two",
        "add",
    )


@pytest.mark.parametrize(
    ("fn", "types", "result"),
    [
        ("relu", [LOW], LOW),
        ("add", [LOW, LOW], LOW),
        ("exp", [HIGH], HIGH),
        ("pow", [HIGH], HIGH),
    ],
)
def test_elementwise_functions_keep_their_type_or_go_up(
    fn: str, types: list[str], result: str
) -> None:
    inputs = " ".join(["h"] * len(types))
    made = graph(
        [
            tensor("x", "B", 8, role="input"),
            tensor("w", 8, 8, role="parameter"),
            tensor("h", "B", 8),
            tensor("y", "B", 8),
        ],
        [op("linear", "linear", "x w", "h"), op("act", "pointwise", inputs, "y", fn=fn)],
    )
    found = {name: (ins, outs) for name, ins, outs in described(program_of(made, AMP))}
    assert found["act"] == (types, [result])
    assert ("act.autocast" in found) == (result == HIGH)


def test_a_sum_of_both_types_comes_out_wide_without_a_cast() -> None:
    made = graph(
        [
            tensor("x", "B", 8, role="input"),
            tensor("w", 8, 8, role="parameter"),
            tensor("h", "B", 8),
            tensor("y", "B", 8),
        ],
        [op("linear", "linear", "x w", "h"), op("add", "pointwise", "h x", "y", fn="add")],
    )
    assert described(program_of(made, AMP))[-1] == ("add", [LOW, HIGH], [HIGH])


def test_batch_norm_runs_in_the_type_it_is_given() -> None:
    attrs = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    made = graph(
        [
            tensor("x", "B", 3, 8, 8, role="input"),
            tensor("w", 4, 3, 1, 1, role="parameter"),
            tensor("scale", 4, role="parameter"),
            tensor("shift", 4, role="parameter"),
            tensor("h", "B", 4, 8, 8),
            tensor("y", "B", 4, 8, 8),
        ],
        [op("conv", "conv", "x w", "h", **attrs), op("norm", "batch_norm", "h scale shift", "y")],
    )
    assert described(program_of(made, AMP))[-1] == ("norm", [LOW, HIGH, HIGH], [LOW])


def test_declared_types_stay() -> None:
    base = chain()
    fixed = {**base.tensors, "h": replace(base.tensors["h"], dtype="float16")}
    program = program_of(replace(base, tensors=fixed), PRECISIONS["fp32"])
    assert described(program)[0] == ("one", [HIGH, HIGH, HIGH], ["float16"])


@pytest.mark.parametrize(("precision", "fused"), [("fp32", False), ("tf32", False), ("bf16", True)])
def test_shared_heads_in_float32_have_no_fused_kernel(precision: str, fused: bool) -> None:
    made = graph(
        [
            tensor("w", 1, role="parameter"),
            tensor("q0", "B", 8, 4, 16, role="input"),
            tensor("q", "B", 8, 4, 16),
            tensor("k", "B", 2, 4, 16, role="input"),
            tensor("y", "B", 8, 4, 16),
        ],
        [
            op("scale", "pointwise", "q0 w", "q", fn="mul"),
            op("attend", "attention", "q k k", "y", causal=True),
        ],
    )
    program = program_of(made, PRECISIONS[precision])
    families = set(kernels_of(program, 2, 0).names)
    assert ("_scaled_dot_product_attention" in families) == fused
    assert ("bmm" in families) != fused


@pytest.mark.parametrize(
    ("precision", "parameters"),
    [("fp32", 4), ("tf32", 4), ("bf16", 2), ("fp16", 2), ("amp_bf16", 4), ("amp_fp16", 4)],
)
def test_which_type_parameters_have(precision: str, parameters: int) -> None:
    from traincast.graph import DTYPE_BYTES

    assert DTYPE_BYTES[PRECISIONS[precision].parameters] == parameters
    assert PRECISIONS[precision].autocast == precision.startswith("amp")


def test_precisions_by_name() -> None:
    assert precision_named("AMP-bf16") is AMP
    with pytest.raises(UnknownNameError) as caught:
        precision_named("bf61")
    assert str(caught.value) == (
        "unknown precision 'bf61'; did you mean bf16? "
        "(known: fp32, tf32, bf16, fp16, amp_bf16, amp_fp16, fp8)"
    )
