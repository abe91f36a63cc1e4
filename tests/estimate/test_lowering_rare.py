"""What rarely used kernels launch on a GPU: masked attention, turned operands, experts in fp32."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from traincast.estimate.calibrated.species import fallbacks, keys_of
from traincast.estimate.order import Laid, contiguous, form, image
from traincast.estimate.program import Program, kernels_of, program_of
from traincast.graph import Graph, Op, Size, Tensor, verify
from traincast.graph.precision import PRECISIONS


def tensor(name: str, *shape: int | str, **options: Any) -> Tensor:
    return Tensor(name=name, shape=tuple(map(Size.parse, shape)), **options)


def op(name: str, kind: str, inputs: str, outputs: str, **attrs: Any) -> Op:
    ins, outs = tuple(inputs.split()), tuple(outputs.split())
    return Op(name=name, kind=kind, inputs=ins, outputs=outs, attrs=attrs)


def graph(tensors: list[Tensor], ops: list[Op]) -> Graph:
    made = Graph(name="small", ops=tuple(ops), tensors={t.name: t for t in tensors}, batch=2)
    return verify(made)


@pytest.mark.parametrize(
    ("role", "precision", "said"),
    [
        ("buffer", "bf16", ".masked"),
        ("parameter", "bf16", ".learned"),
        ("parameter", "fp32", ""),  # one kernel serves all
    ],
)
def test_attention_with_a_mask_runs_other_kernels_in_16_bits(
    role: str, precision: str, said: str
) -> None:
    made = graph(
        [
            tensor("x", "B", 4, 8, 16, role="input"),
            tensor("s", 16, role="parameter"),
            tensor("m", 1, 4, 8, 8, role=role),
            *(tensor(n, "B", 4, 8, 16) for n in ("h", "y")),
        ],
        [
            op("scale", "pointwise", "x s", "h", fn="mul"),
            op("attend", "attention", "h h h m", "y", causal=False),
        ],
    )
    kernels = kernels_of(program_of(made, PRECISIONS[precision], "nchw"), 2, 0)
    name = "_scaled_dot_product_attention"
    assert {f"{name}{said}", f"{name}_backward{said}"} < set(kernels.names)
    keys = keys_of(kernels, PRECISIONS[precision], "nchw")
    key = keys[kernels.names.index(f"{name}_backward{said}")]
    assert key == f"attention{said}.backward|{precision}|"
    # Where masks were not measured, attention without one stands in.
    assert f"attention.backward|{precision}|" in list(fallbacks(key, "attention"))


def test_an_operand_is_turned_where_another_axis_is_innermost() -> None:
    plain = contiguous((2, 3, 4))
    assert form(plain, plain, plain) == ""
    # [2, 4, 3] seen as [2, 3, 4]; [3, 2, 4] seen as [2, 3, 4] keeps the last axis innermost.
    assert form(plain, plain, contiguous((2, 4, 3)).permuted((0, 2, 1))) == "turned"
    assert form(plain, plain, contiguous((3, 2, 4)).permuted((1, 0, 2))) == "strided"
    # A part of a larger tensor, and one value for each row.
    assert form(plain, Laid((2, 3, 4), (24, 8, 1))) == "strided"
    assert form(plain, plain, contiguous((3, 1))) == "strided"
    assert form(plain, plain, contiguous((3, 1)).expanded((2, 3, 4))) == "strided"
    # Images in the two orders; with one channel or one pixel they are the same.
    assert form(image((2, 3, 4, 4), last=True), contiguous((2, 3, 4, 4))) == "turned"


def mixed_up(*last: str) -> Program:
    """h plus h with its last two axes exchanged; h multiplied by numbers of the host."""
    made = graph(
        [
            tensor("x", "B", 4, 4, role="input"),
            tensor("w", 4, 4, role="parameter"),
            tensor("constant", dtype="float32", role="buffer"),
            tensor("scale", dtype="float32", role="buffer"),
            tensor("root", dtype="float32"),
            *(tensor(n, "B", 4, 4) for n in ("h", "t", "a", "b", "y")),
        ],
        [
            op("in", "linear", "x w", "h"),
            op("turn", "view", "h", "t", fn="permute", order=(0, 2, 1)),
            op("sum", "pointwise", "h t", "a", fn="add"),
            op("sqrt", "pointwise", "constant", "root", fn="sqrt"),
            op("div", "pointwise", "a root", "b", fn="div"),
            op("mul", "pointwise", "b scale", "y", fn="mul"),
        ],
    )
    return program_of(made, PRECISIONS["bf16"], "nchw")


def test_forms_of_elementwise_kernels() -> None:
    """A number made by the forward pass lies on the host; a buffer is read on the device."""
    names = Counter(kernels_of(mixed_up(), 2, 0).names)
    assert names["add.turned"] == 2  # forward, and the sum of the gradients of h
    assert (names["div"], names["div.strided"]) == (2, 0)
    assert (names["mul"], names["mul.strided"]) == (0, 2)


@pytest.mark.parametrize(("precision", "each"), [("fp32", 4), ("amp_bf16", 4), ("bf16", 2)])
def test_experts_run_one_after_the_other_in_four_bytes(precision: str, each: int) -> None:
    made = graph(
        [
            tensor("x", 12, 8, role="input"),
            tensor("s", 8, role="parameter"),
            tensor("w", 3, 8, 5, role="parameter"),
            tensor("h", 12, 8),
            tensor("y", 12, 5),
        ],
        [
            op("scale", "pointwise", "x s", "h", fn="mul"),
            op("experts", "grouped_matmul", "h w", "y"),
        ],
    )
    kernels = kernels_of(program_of(made, PRECISIONS[precision], "nchw"), 2, 0)
    at = [i for i, name in enumerate(kernels.names) if name in ("mm", "_grouped_mm")]
    # Forward and both gradients: 2 · 12 rows · 8 · 5 each, for three experts.
    assert kernels.flops[at].sum() == 3 * 2 * 12 * 8 * 5
    assert {kernels.each[i] for i in at} == {each}
    assert len(at) == (9 if each == 4 else 3)
    assert np.all(kernels.dims[at, 3] == (1 if each == 4 else 3))
