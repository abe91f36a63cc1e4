"""From a graph to the layers of the model.

conv           one product of the unfolded input and the kernels; grouped: one a group
linear         one product a sample, or as many rows as it has positions
grouped_matmul one product an expert, rows taken as evenly spread
matmul         a product of two activations (of a weight, if one operand is a parameter)
attention      the products q·kᵀ and p·v for each head, all positions, nothing fused
rnn            one dense layer for each weight matrix, all positions at once
pool           im2col forward and col2im backward of its windows
any other      free, as in the authors' code, and listed; its traffic can be charged instead

The authors model convolution, dense layers and pooling; the rest is our extension in their manner.
Every trainable parameter counts once, at the first op that uses it, where its gradient is complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from math import prod

from traincast.estimate.castello.layers import Layer, Network
from traincast.estimate.program import Program, kernels_of, program_of
from traincast.graph import Graph, Op, elements
from traincast.graph.precision import precision_named

_ASSUMED = {
    "matmul": "products of activations are split by columns and gathered",
    "attention": "attention is two products a head, nothing fused, all positions",
    "rnn": "recurrent layers are dense layers over all positions at once",
    "grouped_matmul": "rows are spread evenly over experts",
}
_Moved = tuple[float, float, float, float]


@lru_cache(maxsize=32)
def network_of(graph: Graph, seq: int | None = None) -> Network:
    """Return the layers of a graph, for sequences of `seq` positions (by default the graph's)."""
    return _Lowering(graph, graph.seq if seq is None else seq).network()


class _Lowering:
    def __init__(self, graph: Graph, seq: int) -> None:
        self.graph = graph
        self.seq = seq
        self.batch = max(graph.batch, 1)
        self.seen: set[str] = set()
        self.free: Counter[str] = Counter()
        self.assumed: dict[str, str] = {}

    def network(self) -> Network:
        moved = _traffic(self.graph, self.batch, self.seq)
        layers: list[Layer] = []
        for op in self.graph.ops:
            weights = self._new_weights(op)
            lower = _LOWERED.get(op.kind)
            if lower is not None:
                layers += lower(self, op, weights)
                if op.kind in _ASSUMED:
                    self.assumed[op.kind] = _ASSUMED[op.kind]
                continue
            traffic = moved.get(op.name, (0.0, 0.0, 0.0, 0.0))
            if any(traffic):
                self.free[op.kind] += 1
            if any(traffic) or weights:
                layers.append(Layer(name=op.name, kind="other", weights=weights, moved=traffic))
        free = tuple(self.free.most_common())
        return Network(self.graph.name, tuple(layers), free, tuple(self.assumed.values()))

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(s.at(self.batch, self.seq) for s in self.graph.tensors[name].shape)

    def each(self, name: str) -> float:
        """Return the elements of a tensor for one sample."""
        return elements(self.graph.tensors[name].shape, self.batch, self.seq) / self.batch

    def grad(self, name: str) -> bool:
        return name in self.graph.needs_grad

    def is_parameter(self, name: str) -> bool:
        return self.graph.tensors[name].role == "parameter"

    def _new_weights(self, op: Op) -> float:
        """Return the trainable parameters that no op before this one uses."""
        count = 0
        for name in op.inputs:
            tensor = self.graph.tensors[name]
            if tensor.role == "parameter" and tensor.trainable and name not in self.seen:
                self.seen.add(name)
                count += elements(tensor.shape, 1, 1)
        return float(count)

    def conv(self, op: Op, weights: float) -> list[Layer]:
        x, w, y = op.inputs[0], op.inputs[1], op.outputs[0]
        groups = int(str(op.attrs.get("groups", 1)))
        kernel = prod(self.shape(w)[2:])
        c_in, c_out = self.shape(x)[1], self.shape(y)[1]
        transposed = bool(op.attrs.get("transposed"))
        if transposed:
            columns, depth, sites = c_out * kernel, c_in / groups, self.each(x) / max(c_in, 1)
            unfolded = columns * sites
        else:
            columns, depth, sites = c_out, c_in * kernel / groups, self.each(y) / max(c_out, 1)
            unfolded = c_in * kernel * sites
        return [
            Layer(
                name=op.name, kind="conv", columns=columns, depth=depth, sites=sites,
                groups=groups, units=c_out, unfolded=unfolded, transposed=transposed,
                weights=weights, outputs=self.each(y), inputs=self.each(x),
                data_gradient=self.grad(x), weight_gradient=self.grad(w),
            )
        ]  # fmt: skip

    def linear(self, op: Op, weights: float) -> list[Layer]:
        x, w, y = op.inputs[0], op.inputs[1], op.outputs[0]
        return [self._dense(op.name, x, w, y, self.shape(x)[-1], self.shape(y)[-1], weights)]

    def _dense(
        self, name: str, x: str, w: str, y: str, depth: int, columns: int, weights: float
    ) -> Layer:
        return Layer(
            name=name, kind="dense", columns=columns, depth=depth,
            sites=self.each(y) / max(columns, 1), units=columns, weights=weights,
            outputs=self.each(y), inputs=self.each(x), data_gradient=self.grad(x),
            weight_gradient=self.grad(w),
        )  # fmt: skip

    def grouped(self, op: Op, weights: float) -> list[Layer]:
        x, w, y = op.inputs[0], op.inputs[1], op.outputs[0]
        experts = max(self.shape(w)[0], 1)
        depth, width = self.shape(x)[-1], self.shape(y)[-1]
        rows = self.each(x) / max(depth, 1)
        return [
            Layer(
                name=op.name, kind="dense", columns=experts * width, depth=depth,
                sites=rows / experts, groups=experts, units=experts * width, weights=weights,
                outputs=self.each(y), inputs=self.each(x), data_gradient=self.grad(x),
                weight_gradient=self.grad(w),
            )
        ]  # fmt: skip

    def matmul(self, op: Op, weights: float) -> list[Layer]:
        a, b, y = op.inputs[0], op.inputs[1], op.outputs[0]
        depth = self.shape(a)[-1]
        out = self.shape(y)
        columns = out[-1] if len(out) > 1 else 1
        if self.is_parameter(b):
            return [self._dense(op.name, a, b, y, depth, columns, weights)]
        rows = out[-2] if len(out) > 1 else 1
        matrices = self.each(y) / max(rows * columns, 1)
        groups = max(matrices, 1.0)
        return [
            Layer(
                name=op.name, kind="product", columns=groups * columns, depth=depth,
                sites=rows * matrices / groups, groups=groups, units=groups * columns,
                shared=False, weights=weights, outputs=self.each(y),
                inputs=sum(self.each(n) for n in (a, b) if self.grad(n)),
                data_gradient=self.grad(a), weight_gradient=self.grad(b),
            )
        ]  # fmt: skip

    def attention(self, op: Op, weights: float) -> list[Layer]:
        q, k, v = op.inputs[:3]
        y = op.outputs[0]
        rows, depth = self.shape(q)[-2:]
        positions, width = self.shape(k)[-2], self.shape(v)[-1]
        heads = max(self.each(q) / max(rows * depth, 1), 1.0)
        back = any(self.grad(n) for n in (q, k, v))
        scores = Layer(
            name=f"{op.name}.scores", kind="product", columns=heads * positions, depth=depth,
            sites=rows, groups=heads, units=heads, shared=False, weights=weights,
            inputs=sum(self.each(n) for n in (q, k)), data_gradient=back, weight_gradient=back,
        )  # fmt: skip
        values = Layer(
            name=f"{op.name}.values", kind="product", columns=heads * width, depth=positions,
            sites=rows, groups=heads, units=heads, shared=False, outputs=self.each(y),
            inputs=self.each(v), data_gradient=back, weight_gradient=back,
        )  # fmt: skip
        return [scores, values]

    def rnn(self, op: Op, weights: float) -> list[Layer]:
        x, y = op.inputs[0], op.outputs[0]
        matrices = [n for n in op.inputs[1:] if self.is_parameter(n) and len(self.shape(n)) == 2]
        rows = self.each(x) / max(self.shape(x)[-1], 1)
        layers = []
        for i, name in enumerate(matrices):
            columns, depth = self.shape(name)
            layers.append(
                Layer(
                    name=f"{op.name}.{i}", kind="dense", columns=columns, depth=depth, sites=rows,
                    units=columns, weights=weights if i == 0 else 0.0,
                    outputs=self.each(y) if i == len(matrices) - 1 else rows * columns,
                    inputs=rows * depth, data_gradient=self.grad(x) or i > 0,
                    weight_gradient=self.grad(name),
                )
            )  # fmt: skip
        return layers

    def pool(self, op: Op, weights: float) -> list[Layer]:
        kernel = op.attrs["kernel"]
        window = prod(int(k) for k in kernel) if isinstance(kernel, tuple) else 1
        x, y = op.inputs[0], op.outputs[0]
        return [
            Layer(
                name=op.name, kind="pool", unfolded=window * self.each(y), weights=weights,
                data_gradient=self.grad(x), weight_gradient=False,
            )
        ]  # fmt: skip


_LOWERED: dict[str, Callable[[_Lowering, Op, float], list[Layer]]] = {
    "conv": _Lowering.conv,
    "linear": _Lowering.linear,
    "grouped_matmul": _Lowering.grouped,
    "matmul": _Lowering.matmul,
    "attention": _Lowering.attention,
    "rnn": _Lowering.rnn,
    "pool": _Lowering.pool,
}


def _traffic(graph: Graph, batch: int, seq: int) -> dict[str, _Moved]:
    """Return the bytes that each op moves in float32: for no sample and each further one.

    A line through two batches, forward and backward; from one batch alone, in proportion, where
    the graph holds for that one.
    """
    program = program_of(graph, precision_named("fp32"))
    once = _bytes(program, batch, seq)
    if "batch" in graph.fixed:
        return {n: (0.0, f / batch, 0.0, b / batch) for n, (f, b) in once.items()}
    twice = _bytes(program, 2 * batch, seq)
    found = {}
    for name, (forward, backward) in once.items():
        f, b = (twice[name][0] - forward) / batch, (twice[name][1] - backward) / batch
        found[name] = (forward - f * batch, f, backward - b * batch, b)
    return found


def _bytes(program: Program, batch: int, seq: int) -> dict[str, tuple[float, float]]:
    kernels = kernels_of(program, batch, seq)
    by_class = [[0.0, 0.0] for _ in program.classes]
    for which, phase, read, write in zip(
        kernels.op_class, kernels.phase, kernels.read, kernels.write, strict=True
    ):
        by_class[which][int(phase > 0)] += float(read + write)
    names = zip(program.names, program.op_class, strict=True)
    return {name: (by_class[which][0], by_class[which][1]) for name, which in names}
