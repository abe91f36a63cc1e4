"""Small graphs and cases for the tests of the graph."""

from __future__ import annotations

from typing import Any

from traincast.graph import KINDS, Graph, Op, Size, Tensor
from traincast.graph.kinds import Arg, Case, Costs


def tensor(name: str, *shape: int | str, **options: Any) -> Tensor:
    return Tensor(name=name, shape=tuple(map(Size.parse, shape)), **options)


def op(name: str, kind: str, inputs: str, outputs: str, **attrs: Any) -> Op:
    layer = attrs.pop("layer", "")
    return Op(
        name=name,
        kind=kind,
        inputs=tuple(inputs.split()),
        outputs=tuple(outputs.split()),
        attrs=attrs,
        layer=layer,
    )


def graph(tensors: list[Tensor], ops: list[Op], **options: Any) -> Graph:
    return Graph(name="small", ops=tuple(ops), tensors={t.name: t for t in tensors}, **options)


def perceptron(**options: Any) -> Graph:
    """Two linear layers, a relu between them, cross-entropy at the end."""
    return graph(
        [
            tensor("x", "B", 4, role="input"),
            tensor("target", "B", role="input", dtype="int64"),
            tensor("w1", 8, 4, role="parameter"),
            tensor("b1", 8, role="parameter"),
            tensor("w2", 3, 8, role="parameter"),
            tensor("b2", 3, role="parameter"),
            tensor("h", "B", 8),
            tensor("r", "B", 8),
            tensor("o", "B", 3),
            tensor("loss"),
        ],
        [
            op("first", "linear", "x w1 b1", "h"),
            op("relu", "pointwise", "h", "r", fn="relu"),
            op("second", "linear", "r w2 b2", "o"),
            op("loss", "cross_entropy", "o target", "loss"),
        ],
        **options,
    )


def arg(*shape: int, each: float = 4, grad: bool = True, role: str = "activation") -> Arg:
    n = 1
    for length in shape:
        n *= length
    return Arg(shape, n, each, grad, role)


def weight(*shape: int, each: float = 4, grad: bool = True) -> Arg:
    return arg(*shape, each=each, grad=grad, role="parameter")


def index(*shape: int) -> Arg:
    return arg(*shape, each=8, grad=False)


def costs(kind: str, ins: list[Arg], outs: list[Arg], **attrs: Any) -> Costs:
    return KINDS[kind].costs(Case(attrs, tuple(ins), tuple(outs)))


def shapes(kind: str, ins: list[Arg], outs: list[Arg] | None = None, **attrs: Any) -> Any:
    derive = KINDS[kind].shapes
    assert derive is not None
    return derive(Case(attrs, tuple(ins), tuple(outs or [arg()])))
