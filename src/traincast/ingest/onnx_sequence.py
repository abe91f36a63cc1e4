"""ONNX ops over sequences: recurrent layers and attention."""

from __future__ import annotations

from dataclasses import replace

from traincast.graph import Attr
from traincast.ingest.onnx_trace import Node, ShapeError, Value, as_weight

_CELLS = {"LSTM": ("lstm", 4), "GRU": ("gru", 3), "RNN": ("rnn", 1)}


def recurrent(node: Node) -> list[Value]:
    """One layer over [sequence, batch, input], or batch first with layout 1.

    The weights of both directions are one array in the file; here each direction has its own
    matrices, as the op's cost is that of products with matrices.
    """
    cell, gates = _CELLS[node.op]
    x, w, r = node.value(0), _weights(node, 1), _weights(node, 2)
    hidden = node.number("hidden_size", r.shape[-1])
    ways = 2 if node.text("direction", "forward") == "bidirectional" else 1
    if len(x.shape) != 3 or w.shape != (ways, gates * hidden, x.shape[2]):
        raise ShapeError(f"the weight {w.shape} does not fit the input {x.shape}")
    batch_first = node.number("layout", 0) == 1
    weights = []
    for value in (w, r, *([_weights(node, 3)] if node.has(3) else [])):
        weights += [
            replace(value, name=f"{value.name}.{i}", shape=value.shape[1:], const=None)
            for i in range(ways)
        ]
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    whole = node.part(f"{node.name}.states", (*x.shape[:2], ways * hidden))
    last = (batch, ways, hidden) if batch_first else (ways, batch, hidden)
    ends = [node.out(last, i) for i in range(1, len(node.outputs)) if node.outputs[i]]
    attrs: dict[str, Attr] = {
        "cell": cell,
        "hidden": hidden,
        "layers": 1,
        "bidirectional": ways == 2,
        "batch_first": batch_first,
    }
    node.emit("rnn", [x, *weights], [whole, *ends], **attrs)
    if not node.outputs[0]:
        return [whole, *ends]
    if batch_first:
        return [node.view(whole, node.out((batch, steps, ways, hidden))), *ends]
    apart = node.part(f"{node.name}.ways", (steps, batch, ways, hidden))
    y = node.view(whole, apart)
    return [node.permute(y, (0, 2, 1, 3), node.out((steps, ways, batch, hidden))), *ends]


def _weights(node: Node, index: int) -> Value:
    """Return weights; exporters put the gates into ONNX's order with nodes, which are dropped."""
    value = as_weight(node.value(index))
    if value.rearranged:
        return replace(value, role="weight")
    if value.role != "weight":
        raise ShapeError("its weights are computed by the model, which is not supported")
    return value


def attention(node: Node) -> list[Value]:
    """Scaled dot-product attention over [batch, head, position, channel] or packed heads."""
    q, k, v = (node.value(i) for i in range(3))
    packed = len(q.shape) == 3
    if packed:
        heads = node.number("q_num_heads", 0)
        shared = node.number("kv_num_heads", heads)
        if not heads or not shared:
            raise ShapeError("its inputs have 3 axes, so q_num_heads and kv_num_heads are needed")
        q = _unpack(node, q, heads, "q")
        k, v = _unpack(node, k, shared, "k"), _unpack(node, v, shared, "v")
    if node.has(4) and node.has(5):
        k, v = _after(node, node.value(4), k, "keys"), _after(node, node.value(5), v, "values")
    if q.shape[-1] != k.shape[-1] or k.shape[:3] != v.shape[:3]:
        raise ShapeError(f"q {q.shape}, k {k.shape} and v {v.shape} do not fit")
    shape = (*q.shape[:-1], v.shape[-1])
    y = node.part(f"{node.name}.heads", shape) if packed else node.out(shape)
    ins = [q, k, v, *([node.value(3)] if node.has(3) else [])]
    node.emit("attention", ins, [y], causal=bool(node.number("is_causal", 0)))
    if packed:
        b, h, s, d = shape
        turned = node.part(f"{node.name}.turned", (b, s, h, d))
        y = node.permute(y, (0, 2, 1, 3), turned)
        y = node.view(y, node.out((b, s, h * d)))
    return [y, k, v][: len(node.outputs)]


def _unpack(node: Node, x: Value, heads: int, name: str) -> Value:
    b, s, width = x.shape
    if width % heads:
        raise ShapeError(f"its {width} channels do not divide into {heads} heads")
    apart = node.view(x, node.part(f"{node.name}.{name}", (b, s, heads, width // heads)))
    turned = node.part(f"{node.name}.{name}_heads", (b, heads, s, width // heads))
    return node.permute(apart, (0, 2, 1, 3), turned)


def _after(node: Node, past: Value, new: Value, name: str) -> Value:
    shape = (*new.shape[:2], past.shape[2] + new.shape[2], new.shape[3])
    return node.emit("concat", [past, new], [node.part(f"{node.name}.{name}", shape)], axis=2)


HANDLERS = {"LSTM": recurrent, "GRU": recurrent, "RNN": recurrent, "Attention": attention}
