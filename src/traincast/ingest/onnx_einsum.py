"""Einsum of ONNX: sums of products become one batched product of matrices between views."""

from __future__ import annotations

import math
from collections.abc import Sequence

from traincast.ingest.onnx_ops import product
from traincast.ingest.onnx_trace import Node, ShapeError, Value


def einsum(node: Node) -> Value:
    """Append what an equation of one or two terms computes."""
    equation = node.text("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    sizes = _sizes(node, terms)
    lone = [c for c in set(left) - {","} if left.count(c) == 1 and c not in right]
    if "." in equation or not arrow or len(terms) > 2 or (lone and len(terms) > 1):
        raise ShapeError(
            f"the equation {equation!r} is of a form not supported; write it with MatMul"
        )
    if len(terms) == 1:
        return _single(node, left, right, sizes)
    if terms[0] == terms[1] == right:
        return node.emit("pointwise", node.given(), [node.out(node.value().shape)], fn="mul")
    return _double(node, terms[0], terms[1], right, sizes)


def _sizes(node: Node, terms: Sequence[str]) -> dict[str, int]:
    """Return the length that each letter stands for."""
    sizes: dict[str, int] = {}
    if len(terms) != len(node.given()):
        raise ShapeError(f"its equation has {len(terms)} terms for {len(node.given())} inputs")
    for term, value in zip(terms, node.given(), strict=True):
        if len(term) != len(value.shape) or len(set(term)) != len(term):
            raise ShapeError(f"the term {term!r} does not fit the shape {value.shape}")
        for letter, size in zip(term, value.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise ShapeError(f"{letter!r} stands for both {sizes[letter]} and {size}")
    return sizes


def _single(node: Node, left: str, right: str, sizes: dict[str, int]) -> Value:
    out = node.out([sizes[c] for c in right])
    if len(right) == len(left):
        return node.permute(node.value(), [left.index(c) for c in right], out)
    return node.emit("reduce", [node.value()], [out], fn="sum")


def _double(node: Node, a: str, b: str, right: str, sizes: dict[str, int]) -> Value:
    """Letters in both terms are summed or batched, those in one are rows or columns."""
    shared = "".join(c for c in a if c in b and c in right)
    summed = "".join(c for c in a if c in b and c not in right)
    rows = "".join(c for c in a if c not in b)
    columns = "".join(c for c in b if c not in a)
    x = _matrix(node, node.value(0), a, (shared, rows, summed), sizes, "a")
    y = _matrix(node, node.value(1), b, (shared, summed, columns), sizes, "b")
    order = shared + rows + columns
    shape = [sizes[c] for c in right]
    straight = order == right and [*x.shape[:-1], y.shape[-1]] == shape
    name = node.outputs[0] if straight else f"{node.name}.product"
    z = product(node, x, y, lambda lengths: node.part(name, lengths))
    if order == right:
        return node.view(z, node.out(shape))
    z = node.view(z, node.part(f"{node.name}.apart", [sizes[c] for c in order]))
    return node.permute(z, [order.index(c) for c in right], node.out(shape))


def _matrix(
    node: Node,
    value: Value,
    term: str,
    groups: tuple[str, str, str],
    sizes: dict[str, int],
    suffix: str,
) -> Value:
    """View a term as [batch,] rows × columns; without batch letters as a plain matrix."""
    order = [term.index(c) for c in "".join(groups)]
    if order != sorted(order):
        turned = node.part(f"{node.name}.{suffix}.turned", [value.shape[i] for i in order])
        value = node.permute(value, order, turned)
    lengths = [math.prod(sizes[c] for c in group) for group in groups]
    shape = lengths if groups[0] else lengths[1:]
    return node.view(value, node.part(f"{node.name}.{suffix}", shape))


HANDLERS = {"Einsum": einsum}
