"""What the importers of file formats share: a graph in the making.

What a file format leaves open is settled here, once: the loss that a training graph ends in,
names that are used twice, where the odd zero of SAME padding goes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from traincast.errors import InputFileError
from traincast.graph import FLOATS, Attr, Graph, Op, Size, Tensor, name_dims, verify

Shape = tuple[Size, ...]

BATCH = Size(batch=1)
SEQUENCE = Size(sequence=1)


def sizes(*lengths: int | Size) -> Shape:
    """Return a shape from lengths, of which any may be symbolic already."""
    return tuple(n if isinstance(n, Size) else Size(n) for n in lengths)


class GraphBuilder:
    """A graph in the making."""

    def __init__(self, name: str, source: str = "") -> None:
        self.name = name
        self.source = source
        self.ops: list[Op] = []
        self.tensors: dict[str, Tensor] = {}
        self.notes: list[str] = []
        self._op_names: set[str] = set()

    def tensor(
        self,
        name: str,
        shape: Shape,
        *,
        dtype: str = "float",
        role: str = "activation",
        trainable: bool = True,
    ) -> str:
        """Declare a tensor; return its name, numbered if the one asked for is taken."""
        name = _free(name, self.tensors)
        self.tensors[name] = Tensor(
            name=name, shape=shape, dtype=dtype, role=role, trainable=trainable
        )
        return name

    def parameter(self, name: str, *lengths: int) -> str:
        """Declare a parameter of fixed lengths."""
        return self.tensor(name, sizes(*lengths), role="parameter")

    def add(
        self,
        kind: str,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        attrs: Mapping[str, Attr] | None = None,
        layer: str = "",
    ) -> None:
        """Append an op between declared tensors."""
        name = _free(name, self._op_names)
        self._op_names.add(name)
        self.ops.append(
            Op(
                name=name,
                kind=kind,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                attrs=dict(attrs or {}),
                layer=layer or name,
            )
        )

    def op(
        self,
        kind: str,
        name: str,
        inputs: Sequence[str],
        shape: Shape,
        *,
        attrs: Mapping[str, Attr] | None = None,
        layer: str = "",
    ) -> str:
        """Append an op with one float output, named like the op; return the output's name."""
        out = self.tensor(name, shape)
        self.add(kind, name, inputs, [out], attrs=attrs, layer=layer)
        return out

    def shape(self, name: str) -> Shape:
        """Return the shape of a declared tensor."""
        return self.tensors[name].shape

    def end_in_loss(self, outputs: Sequence[str]) -> None:
        """End the graph in a scalar loss over the given outputs, and note what was assumed.

        A float scalar among the outputs is the loss already. A final softmax is merged into the
        cross-entropy, as frameworks do.
        """
        floats = [name for name in outputs if self.tensors[name].dtype in FLOATS]
        if any(self.shape(name) == () for name in floats):
            return
        losses = [self._loss_on(name, numbered=len(floats) > 1) for name in floats]
        while len(losses) > 1:
            losses[:2] = [self.op("pointwise", "loss", losses[:2], (), attrs={"fn": "add"})]

    def _loss_on(self, name: str, *, numbered: bool) -> str:
        logits, label, layer = self._without_softmax(name)
        stem = f"{name}/" if numbered else ""
        shape = self.shape(logits)
        if len(shape) < 2:
            self.note(f"the mean of the output {name!r} is taken as the loss")
            label = label or f"{stem}loss"
            return self._scalar("reduce", label, [logits], {"fn": "mean"}, f"{stem}loss", layer)
        self.note("cross-entropy on the output is assumed")
        if len(shape) > 2 and any(size.sequence or size.both for size in shape[1:-1]):
            logits = self._rows(logits, f"{stem}logits", layer)
            shape = self.shape(logits)
        target = self.tensor(f"{stem}target", (shape[0], *shape[2:]), dtype="int64", role="input")
        label = label or f"{stem}cross_entropy"
        return self._scalar("cross_entropy", label, [logits, target], {}, f"{stem}loss", layer)

    def _scalar(
        self,
        kind: str,
        name: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Attr],
        output: str,
        layer: str,
    ) -> str:
        out = self.tensor(output, ())
        self.add(kind, name, inputs, [out], attrs=attrs, layer=layer)
        return out

    def _rows(self, logits: str, name: str, layer: str) -> str:
        """View [samples, positions, classes] as one row of classes a position."""
        *lead, classes = self.shape(logits)
        rows = product(lead)
        if rows is None:
            return logits
        view = {"fn": "reshape"}
        return self.op("view", name, [logits], (rows, classes), attrs=view, layer=layer)

    def _without_softmax(self, name: str) -> tuple[str, str, str]:
        """Return what a final softmax read, with the op's name and layer, and drop the softmax."""
        last = next((op for op in reversed(self.ops) if name in op.outputs), None)
        used = any(name in op.inputs for op in self.ops)
        if last is None or last.kind != "softmax" or used:
            return name, "", last.layer if last else ""
        self.ops.remove(last)
        self._op_names.discard(last.name)
        del self.tensors[name]
        self.note("the final softmax is computed within the cross-entropy")
        return last.inputs[0], last.name, last.layer

    def note(self, text: str) -> None:
        """Keep a remark for the reader of a prediction, once."""
        if text not in self.notes:
            self.notes.append(text)

    def build(self, *, batch: int = 1, seq: int = 0, fixed: Sequence[str] = ()) -> Graph:
        """Return the graph with named dims; raise GraphError if it breaks the specification."""
        graph = Graph(
            name=self.name,
            ops=tuple(self.ops),
            tensors=dict(self.tensors),
            batch=batch,
            seq=seq,
            source=self.source,
            notes=tuple(self.notes),
            fixed=tuple(fixed),
        )
        return verify(name_dims(graph))


def product(factors: Sequence[Size]) -> Size | None:
    """Return the product of sizes, or None where it is no size, such as B·B."""
    points = [(b, s) for b in (2, 3) for s in (16, 24)] + [(5, 40)]
    return Size.fit({at: math.prod(size.at(*at) for size in factors) for at in points})


def _free(name: str, taken: Mapping[str, object] | set[str]) -> str:
    if name not in taken:
        return name
    number = 2
    while f"{name}.{number}" in taken:
        number += 1
    return f"{name}.{number}"


def json_object(text: str, *, where: str) -> dict[str, Any]:
    """Return the object that a JSON text holds."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputFileError(
            where, f"is not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    if not isinstance(data, dict):
        raise InputFileError(where, "is not a JSON object")
    return data


def in_order(parents: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """Return names with parents before children, and the names along one cycle, if there is one.

    A parent that is no key of `parents` is taken as there already.
    """
    waiting = {name: {p for p in above if p in parents} for name, above in parents.items()}
    ordered: list[str] = []
    while free := [name for name, above in waiting.items() if not above]:
        ordered += free
        for name in free:
            del waiting[name]
        for above in waiting.values():
            above.difference_update(free)
    path = list(waiting)[:1]
    while path and path[-1] not in path[:-1]:
        path.append(min(waiting[path[-1]]))
    return ordered, path[path.index(path[-1]) :][::-1] if path else []


def is_whole(value: object, least: int = 1) -> bool:
    """Tell whether a value from a file is an integer of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def are_whole(value: object, count: int, least: int = 1) -> bool:
    """Tell whether a value from a file is a list of `count` such integers."""
    return (
        isinstance(value, list) and len(value) == count and all(is_whole(v, least) for v in value)
    )


def same_pads(size: int, out: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the zeros before and after an axis that SAME padding takes; the odd one comes last."""
    total = max((out - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2
