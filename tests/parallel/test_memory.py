"""Peak memory: a small network with every byte accounted for, and what must hold for any."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast import predict
from traincast.estimate.optimizer import OPTIMIZERS
from traincast.estimate.program import kernels_of, program_of
from traincast.graph import Graph, Op, Size, Tensor, verify
from traincast.graph.precision import PRECISIONS
from traincast.ingest import zoo_graph
from traincast.parallel.memory import Memory, block_of, memory_of

ADAMW = OPTIMIZERS["adamw"]


def tensor(name: str, *shape: int | str, **options: Any) -> Tensor:
    return Tensor(name=name, shape=tuple(map(Size.parse, shape)), **options)


def op(name: str, kind: str, inputs: str, outputs: str, **attrs: Any) -> Op:
    layer = attrs.pop("layer", name)
    return Op(
        name=name,
        kind=kind,
        inputs=tuple(inputs.split()),
        outputs=tuple(outputs.split()),
        attrs=attrs,
        layer=layer,
    )


def perceptron(inplace: bool = False) -> Graph:
    """x[B, 4] → linear 8 → relu → linear 3 → cross-entropy with target[B]."""
    tensors = [
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
    ]
    ops = (
        op("first", "linear", "x w1 b1", "h"),
        op("relu", "pointwise", "h", "r", fn="relu", inplace=inplace),
        op("second", "linear", "r w2 b2", "o"),
        op("loss", "cross_entropy", "o target", "loss"),
    )
    return verify(Graph(name="perceptron", ops=ops, tensors={t.name: t for t in tensors}))


def memory(
    graph: Graph, batch: int = 2, precision: str = "fp32", seq: int = 0, **options: Any
) -> Memory:
    program = program_of(graph, PRECISIONS[precision])
    given = {"optimizer": ADAMW} | options
    return memory_of(program, kernels_of(program, batch, seq), batch, seq, **given)


# Bytes in float32 at batch 2.
PARAMETERS = 4 * (8 * 4 + 8 + 3 * 8 + 3)  # 268
LAST = 4 * (3 * 8 + 3)  # 108, of the second layer
INPUTS = 4 * 2 * 4 + 8 * 2  # x in float32 and targets in int64: 48
HIDDEN = 4 * 2 * 8  # 64, both h and r
LOGITS = 4 * 2 * 3  # 24
LOSS = 4


def test_every_byte_of_a_training_step() -> None:
    """What is alive while each op runs, beside parameters, state and the batch itself.

    forward                                 backward (read upwards)
    first   h                          64   r's grad gone; h's grad, all grads      64 + 268
    relu    h, r                      128   r; grads of r and h; last layer's      64 + 128 + 108
    second  r, o                       88   r; grads of o and r; last layer's      64 + 88 + 108
    loss    r, o, loss, log-probs     116   r, log-probs; grads of loss and o; scratch
                                            64 + 24 + 4 + 24 + 24
    """
    found = memory(perceptron())
    assert found.parameters == PARAMETERS == 268
    assert found.gradients == 268
    assert found.optimizer == 2 * 268
    assert found.inputs == INPUTS == 48
    moments = [
        HIDDEN + PARAMETERS,
        HIDDEN + 2 * HIDDEN + LAST,
        HIDDEN + LOGITS + HIDDEN + LAST,
        HIDDEN + LOGITS + LOSS + LOGITS + LOGITS,
    ]
    assert moments == [332, 300, 260, 140]
    assert found.at == "backward"
    assert found.peak == 268 + 2 * 268 + 48 + 332
    # The activations are at their most when relu runs back: r and two gradients.
    assert found.activations == 3 * HIDDEN
    assert found.workspace == 0


def test_scratch_of_libraries_is_added() -> None:
    plain, more = memory(perceptron()), memory(perceptron(), workspace=1000.0)
    assert more.peak == plain.peak + 1000
    assert more.workspace == 1000


def test_accumulated_gradients_stay_for_the_whole_step() -> None:
    """All 268 bytes of gradients are there at every moment: relu's backward is then the peak."""
    found = memory(perceptron(), accumulate=2)
    assert found.peak == 268 + 2 * 268 + 48 + (HIDDEN + 2 * HIDDEN + PARAMETERS)
    assert found.at == "backward"


def test_a_forward_pass_alone_keeps_nothing() -> None:
    """The most is h and r together, beside parameters and inputs."""
    found = memory(perceptron(), optimizer=None)
    assert (found.gradients, found.optimizer, found.at) == (0, 0, "forward")
    assert found.activations == 2 * HIDDEN
    assert found.peak == 268 + 48 + 2 * HIDDEN


def test_an_op_in_place_needs_no_second_value() -> None:
    found = memory(perceptron(inplace=True), optimizer=None)
    # h turns into r: 64; then r and o; then o and the loss.
    assert found.activations == HIDDEN + LOGITS


@pytest.mark.parametrize(("name", "state"), [("sgd", 0), ("momentum", 1), ("adamw", 2)])
def test_state_of_optimizers(name: str, state: int) -> None:
    found = memory(perceptron(), optimizer=OPTIMIZERS[name])
    assert found.optimizer == state * 268
    assert found.peak == 268 + state * 268 + 48 + 332


def test_half_precision_halves_all_but_the_targets() -> None:
    wide, half = memory(perceptron()), memory(perceptron(), precision="bf16")
    assert half.parameters == wide.parameters / 2
    assert half.gradients == wide.gradients / 2
    assert half.optimizer == wide.optimizer / 2
    assert half.inputs == 2 * 2 * 4 + 16
    assert half.activations == wide.activations / 2


def test_the_update_is_the_peak_of_a_network_with_few_activations() -> None:
    """Nothing is alive in the update but all gradients; an op's own values are 8 bytes at batch 1.

    w takes 4 MB; its gradient appears while x's neighbours are tiny.
    """
    made = Graph(
        name="wide",
        ops=(op("in", "linear", "x w", "y"),),
        tensors={
            t.name: t
            for t in (
                tensor("x", "B", 1000, role="input"),
                tensor("w", 1000, 1000, role="parameter"),
                tensor("y", "B", 1000),
            )
        },
    )
    found = memory(verify(made), batch=1)
    # Backward holds y's gradient (4 kB) beside w's (4 MB).
    assert found.peak == 3 * 4e6 + 4e3 + (4e6 + 4e3)


def blocks(count: int, wide: int) -> Graph:
    """`count` blocks of linear → gelu → linear on 8 features, `wide` inside."""
    tensors = [tensor("h0", "B", 8, role="input")]
    ops = []
    for i in range(count):
        tensors += [
            tensor(f"u{i}", wide, 8, role="parameter"),
            tensor(f"v{i}", 8, wide, role="parameter"),
            tensor(f"a{i}", "B", wide),
            tensor(f"g{i}", "B", wide),
            tensor(f"h{i + 1}", "B", 8),
        ]
        layer = f"blocks.{i}"
        ops += [
            op(f"{layer}.up", "linear", f"h{i} u{i}", f"a{i}", layer=f"{layer}.up"),
            op(f"{layer}.act", "pointwise", f"a{i}", f"g{i}", fn="gelu", layer=f"{layer}.act"),
            op(f"{layer}.down", "linear", f"g{i} v{i}", f"h{i + 1}", layer=f"{layer}.down"),
        ]
    return verify(Graph(name="blocks", ops=tuple(ops), tensors={t.name: t for t in tensors}))


def test_recomputation_keeps_what_enters_each_block_and_one_block() -> None:
    """Four blocks, 100 wide, batch 10: a and g are 4,000 bytes each, h 320.

    Without, a and g of four blocks and h1 to h3 are kept (h0 is an input). Most is alive when
    backward begins, in the last block's `down`: all of that and the gradients of h4 and g3. With
    recomputation it is h1 to h3, a and g of the one block made again, and those two gradients.
    """
    made = blocks(4, 100)
    plain, again = memory(made, batch=10), memory(made, batch=10, recompute=True)
    inner, outer = 4000, 320
    assert plain.activations == 4 * 2 * inner + 3 * outer + (outer + inner)
    assert again.activations == 2 * inner + 3 * outer + (outer + inner)


@pytest.mark.parametrize(
    ("layer", "block"),
    [
        ("transformer.h.11.attn.c_attn", "transformer.h.11"),
        ("layer1.0.conv1", "layer1"),
        ("model.layers.3", "model.layers.3"),
        ("features.12", "features.12"),
        ("lm_head", "lm_head"),
        ("", ""),
    ],
)
def test_blocks_end_at_the_first_number(layer: str, block: str) -> None:
    assert block_of(layer) == block


MODELS = ("resnet18", "vgg16", "gpt2", "dlrm", "lstm-ptb", "mnist-small", "t5-small", "unet")
PRECISION = st.sampled_from(["fp32", "bf16", "amp_bf16"])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MODELS), st.integers(1, 64), PRECISION, st.sampled_from(sorted(OPTIMIZERS)))
def test_what_holds_for_every_network(
    model: str, batch: int, precision: str, optimizer: str
) -> None:
    made = zoo_graph(model)
    options: dict[str, Any] = {"precision": precision, "optimizer": optimizer}
    found = predict(made, "h200", batch=batch, **options).memory
    parts = (
        found.parameters,
        found.gradients,
        found.optimizer,
        found.inputs,
        found.activations,
        found.workspace,
    )
    assert all(p >= 0 for p in parts)
    standing = found.parameters + found.optimizer + found.inputs + found.workspace
    # Beside what always stands, the peak has all gradients in the update or all activations in the
    # forward pass; and it is no more than everything at once and the scratch of one op.
    assert found.peak >= standing + found.gradients - 1e-6
    assert found.peak >= standing + found.activations - 1e-6
    scratch = predict(made, "h200", batch=batch, **options).step.kernels.workspace.max()
    assert found.peak <= sum(parts) + scratch + 1e-6
    recomputed = predict(made, "h200", batch=batch, recompute=True, **options).memory
    assert recomputed.activations <= found.activations
    assert recomputed.peak <= found.peak
    assert recomputed.parameters == found.parameters
    inference = predict(made, "h200", batch=batch, inference=True, **options).memory
    assert inference.peak <= found.peak
    larger = predict(made, "h200", batch=batch + 1, **options).memory
    assert larger.peak > found.peak


@pytest.mark.parametrize("model", ["resnet18", "gpt2", "dlrm"])
def test_parameter_bytes_halve_in_half_precision(model: str) -> None:
    wide, half = (predict(model, "h200", batch=2, precision=p).memory for p in ("fp32", "bf16"))
    assert half.parameters * 2 == wide.parameters == 4 * zoo_graph(model).parameter_count
    assert half.gradients * 2 == wide.gradients
    assert half.optimizer * 2 == wide.optimizer
    mixed = predict(model, "h200", batch=2, precision="amp_bf16").memory
    assert mixed.parameters == wide.parameters


def test_a_frozen_network_needs_no_gradients() -> None:
    base = zoo_graph("resnet18")
    tensors = {n: replace(t, trainable=n.startswith("fc.")) for n, t in base.tensors.items()}
    found = predict(replace(base, tensors=tensors), "h200", batch=8, precision="fp32").memory
    # The last layer alone: 512 × 1,000 weights and 1,000 biases.
    assert found.gradients == 4 * 513_000
    assert found.optimizer == 2 * 4 * 513_000
    assert found.activations < predict(base, "h200", batch=8, precision="fp32").memory.activations


def test_scratch_depends_on_the_device() -> None:
    """cuBLAS takes 32 MiB on Hopper, less before; a processor's library needs none that counts.

    The backward pass has a thread and a workspace of its own.
    """
    hopper, ada, processor = (
        predict("mnist-small", d, batch=1).memory.workspace
        for d in ("h200", "rtx-4090", "xeon-8380")
    )
    assert 64 * 2**20 <= hopper < 72 * 2**20
    alone = predict("mnist-small", "h200", batch=1, inference=True).memory.workspace
    assert 32 * 2**20 <= alone < 36 * 2**20
    assert 8 * 2**20 <= ada < hopper
    assert processor == 0
