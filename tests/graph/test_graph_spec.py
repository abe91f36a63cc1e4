"""The specification: one graph that breaks each rule, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from graph_cases import graph, op, perceptron, tensor

from traincast.errors import GraphError
from traincast.graph import KINDS, Graph, Op, Tensor, verify
from traincast.graph.kinds.base import register
from traincast.ingest import zoo_graph


def problems(broken: Graph) -> list[str]:
    with pytest.raises(GraphError) as caught:
        verify(broken)
    assert caught.value.name == broken.name
    return caught.value.problems


def with_op(name: str, /, **changes: object) -> Graph:
    """Return the perceptron with one op changed."""
    base = perceptron()
    ops = tuple(replace(o, **changes) if o.name == name else o for o in base.ops)
    return replace(base, ops=ops)


def with_tensor(*tensors: Tensor) -> Graph:
    base = perceptron()
    return replace(base, tensors={**base.tensors, **{t.name: t for t in tensors}})


def test_a_valid_graph_comes_back_as_it_is() -> None:
    made = perceptron()
    assert verify(made) is made


@pytest.mark.parametrize("name", ["resnet18", "gpt2", "dlrm", "lstm-ptb", "mixtral-8x7b", "swin_t"])
def test_networks_of_the_zoo_obey_every_rule(name: str) -> None:
    verify(zoo_graph(name))


def test_a_graph_has_ops() -> None:
    assert problems(graph([], [])) == ["it has no ops"]


def test_an_op_name_is_used_once() -> None:
    broken = with_op("second", name="first")
    assert problems(broken) == ["op name 'first' is used 2 times; give each op a name of its own"]


def test_an_unknown_kind_comes_with_its_neighbours() -> None:
    assert problems(with_op("first", kind="linaer")) == [
        "op 'first' has the unknown kind 'linaer'; did you mean linear?"
    ]
    assert problems(with_op("first", kind="quux")) == ["op 'first' has the unknown kind 'quux'"]


@pytest.mark.parametrize(
    ("name", "inputs", "said"),
    [
        ("first", ("x",), "op 'first' (linear) has 1 inputs, takes 2 to 3"),
        ("loss", ("o",), "op 'loss' (cross_entropy) has 1 inputs, takes 2"),
        ("relu", (), "op 'relu' (pointwise) has 0 inputs, takes 1 to any number"),
        ("second", ("r", "w2", "b2", "b2"), "op 'second' (linear) has 4 inputs, takes 2 to 3"),
    ],
)
def test_a_kind_takes_so_many_inputs(name: str, inputs: tuple[str, ...], said: str) -> None:
    assert problems(with_op(name, inputs=inputs)) == [said]


def test_an_op_has_outputs() -> None:
    assert problems(with_op("loss", outputs=())) == ["op 'loss' (cross_entropy) has no outputs"]


def test_an_attribute_must_be_there() -> None:
    said = "op 'relu' (pointwise) lacks the attribute 'fn'"
    assert problems(with_op("relu", attrs={})) == [said]


def test_an_attribute_has_the_right_type() -> None:
    said = "op 'relu': attribute 'fn' is 3, of the wrong type"
    assert problems(with_op("relu", attrs={"fn": 3})) == [said]


def test_a_tensor_is_declared() -> None:
    assert problems(with_op("first", inputs=("x", "w11", "b1"))) == [
        "op 'first' names the tensor 'w11', which is not declared; did you mean 'w1'?"
    ]
    assert problems(with_op("loss", outputs=("zzzzzz",))) == [
        "op 'loss' names the tensor 'zzzzzz', which is not declared"
    ]


def test_the_loss_is_a_tensor() -> None:
    assert problems(perceptron(loss="cost")) == ["the loss 'cost' is no tensor of the graph"]


def test_an_element_type_is_known() -> None:
    assert problems(with_tensor(tensor("h", "B", 8, dtype="float12"))) == [
        "tensor 'h' has the unknown element type 'float12'"
    ]


def test_a_role_is_known() -> None:
    assert problems(with_tensor(tensor("w1", 8, 4, role="weight"))) == [
        "tensor 'w1' has the role 'weight'; use one of input, parameter, buffer, activation"
    ]


def test_each_axis_has_one_dim() -> None:
    assert problems(with_tensor(tensor("h", "B", 8, dims=("sample",)))) == [
        "tensor 'h' names 1 dims for 2 axes"
    ]


def test_a_tensor_is_written_once() -> None:
    broken = with_op("relu", outputs=("h",))
    assert problems(broken)[0] == "tensor 'h' is written by both 'first' and 'relu'"


def test_an_op_writes_activations_only() -> None:
    assert "op 'relu' writes 'w2', which has the role parameter" in problems(
        with_op("relu", outputs=("w2",))
    )


def test_what_is_read_has_a_writer() -> None:
    broken = perceptron()
    broken = replace(broken, ops=tuple(o for o in broken.ops if o.name != "relu"))
    assert problems(broken) == ["op 'second' reads 'r', which nothing writes"]


def test_ops_stand_in_an_order_in_which_they_can_run() -> None:
    base = perceptron()
    first, relu, second, loss = base.ops
    assert problems(replace(base, ops=(relu, first, second, loss))) == [
        "op 'relu' reads 'h' before 'first' writes it; "
        "list the ops in an order in which they can run"
    ]


def ring(count: int) -> Graph:
    """Ops op0 → op1 → … → op0, each reading what the one before writes."""
    values = [tensor(f"t{i}", "B") for i in range(count)]
    ops = [
        op(f"op{i}", "pointwise", f"t{(i - 1) % count}", f"t{i}", fn="relu") for i in range(count)
    ]
    return graph([tensor("x", "B", role="input"), *values], ops)


@pytest.mark.parametrize(
    ("count", "path"),
    [(1, "op0 → op0"), (2, "op0 → op1 → op0"), (3, "op0 → op1 → op2 → op0")],
)
def test_a_cycle_is_named_op_by_op_along_the_data(count: int, path: str) -> None:
    assert problems(ring(count)) == [f"there is a cycle: {path}; a graph must not have one"]


def test_a_cycle_is_named_without_what_leads_to_it() -> None:
    base = ring(3)
    ops = (op("before", "pointwise", "x", "y", fn="relu"), *base.ops)
    first = replace(base.ops[0], inputs=("t2", "y"), attrs={"fn": "add"})
    broken = replace(
        base,
        ops=(ops[0], first, *base.ops[1:]),
        tensors={**base.tensors, "y": tensor("y", "B")},
    )
    assert problems(broken) == [
        "there is a cycle: op0 → op1 → op2 → op0; a graph must not have one"
    ]


def test_no_size_is_negative() -> None:
    found = problems(with_tensor(tensor("h", "B-3", 8), tensor("r", "B-3", 8)))
    assert "tensor 'h' of shape (B-3, 8) has a negative size at batch 2" in found


def test_an_output_has_the_shape_that_follows() -> None:
    found = problems(with_tensor(tensor("o", "B", 4)))
    assert found[0] == (
        "op 'second' (linear) makes (2, 3) out of (2, 8) and (3, 8) and (3,) at batch 2, "
        "but its output 'o' is declared as (2, 4)"
    )


def test_a_shape_that_is_right_at_one_batch_only_is_found() -> None:
    found = problems(with_tensor(tensor("o", 2, 3)))
    assert [f for f in found if "'second'" in f] == [
        "op 'second' (linear) makes (5, 3) out of (5, 8) and (3, 8) and (3,) at batch 5, "
        "but its output 'o' is declared as (2, 3)"
    ]


def test_a_linear_layer_takes_the_features_it_is_given() -> None:
    found = problems(with_tensor(tensor("w2", 3, 9, role="parameter")))
    assert found[0] == (
        "op 'second' (linear) cannot take (2, 8) and (3, 9) and (3,): "
        "the weight takes 9 features, the input has 8"
    )


def convolution(
    *weight: int, out: tuple[int | str, ...] = ("B", 4, 6, 6), **attrs: object
) -> Graph:
    given = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1, **attrs}
    return graph(
        [
            tensor("x", "B", 6, 8, 8, role="input"),
            tensor("w", *weight, role="parameter"),
            tensor("y", *out),
        ],
        [op("conv", "conv", "x w", "y", **given)],
    )


def test_a_convolution_takes_the_channels_it_is_given() -> None:
    verify(convolution(4, 6, 3, 3))
    verify(convolution(4, 3, 3, 3, groups=2))
    assert problems(convolution(4, 3, 3, 3))[0] == (
        "op 'conv' (conv) cannot take (2, 6, 8, 8) and (4, 3, 3, 3): "
        "the weight takes 3 channels, the input has 6"
    )


@pytest.mark.parametrize("attr", ["stride", "dilation", "groups"])
def test_a_convolution_moves_and_spreads_by_at_least_one(attr: str) -> None:
    broken = convolution(4, 6, 3, 3, **{attr: 0 if attr == "groups" else (1, 0)})
    assert problems(broken)[0].endswith(": stride, dilation and groups must be at least 1")


def test_attributes_too_short_for_the_axes_are_named() -> None:
    assert problems(convolution(4, 6, 3, 3, stride=(1,)))[0] == (
        "op 'conv' (conv): its inputs (2, 6, 8, 8), (4, 6, 3, 3) do not fit its attributes"
    )


def test_a_sequence_length_is_given_where_sizes_need_one() -> None:
    base = graph(
        [tensor("x", "B", "S", role="input"), tensor("y", "B", "S")],
        [op("act", "pointwise", "x", "y", fn="relu")],
    )
    verify(replace(base, seq=8))
    assert problems(base) == ["its sizes depend on the sequence length, but seq is 0"]


def test_all_broken_rules_of_a_stage_are_listed_together() -> None:
    base = with_op("relu", attrs={})
    ops: tuple[Op, ...] = (*base.ops, replace(base.ops[0], kind="linaer"))
    found = problems(replace(base, ops=ops))
    assert len(found) == 3
    assert "op name 'first' is used 2 times; give each op a name of its own" in found


def test_the_message_lists_twenty_problems_and_counts_the_rest() -> None:
    ops = [op(f"op{i}", "quux", "x", f"t{i}") for i in range(25)]
    with pytest.raises(GraphError) as caught:
        verify(graph([tensor("x", "B", role="input")], ops))
    message = str(caught.value)
    assert message.startswith("graph 'small' is not valid:\n  - op 'op0' has the unknown kind")
    assert message.count("\n  - ") == 20
    assert message.endswith("\n  … and 5 more")
    assert len(caught.value.problems) == 25


def test_a_kind_is_registered_once() -> None:
    with pytest.raises(AssertionError, match="kind 'linear' is registered twice"):
        register(KINDS["linear"])


def frozen(name: str) -> Callable[[Graph], Graph]:
    def change(base: Graph) -> Graph:
        tensors = {
            n: replace(t, trainable=t.trainable and n != name) for n, t in base.tensors.items()
        }
        return replace(base, tensors=tensors)

    return change


def test_gradients_flow_from_the_loss_to_the_first_trainable_parameter() -> None:
    made = perceptron()
    assert made.needs_grad == {"w1", "b1", "w2", "b2", "h", "r", "o", "loss"}
    made = frozen("b1")(frozen("w1")(made))
    assert made.needs_grad == {"w2", "b2", "o", "loss"}


def test_gradients_stop_at_detach_and_at_comparisons() -> None:
    tensors = [
        tensor("x", "B", role="input"),
        tensor("w", 1, role="parameter"),
        *(tensor(n, "B") for n in ("a", "cut", "sum", "loss")),
        tensor("flag", "B", dtype="bool"),
    ]
    made = graph(
        tensors,
        [
            op("scale", "pointwise", "x w", "a", fn="mul"),
            op("detach", "view", "a", "cut", fn="detach"),
            op("compare", "pointwise", "a x", "flag", fn="gt"),
            op("choose", "pointwise", "flag cut x", "sum", fn="where"),
            op("add", "pointwise", "sum a", "loss", fn="add"),
        ],
    )
    assert verify(made).needs_grad == {"w", "a", "loss"}


def test_what_the_loss_does_not_depend_on_gets_no_gradient() -> None:
    base = perceptron()
    extra = op("unused", "pointwise", "h", "u", fn="relu")
    made = replace(
        base,
        ops=(*base.ops, extra),
        tensors={**base.tensors, "u": tensor("u", "B", 8)},
        loss="loss",
    )
    assert "u" not in made.needs_grad
    assert "h" in made.needs_grad


def test_parameters_are_counted_once_and_shown() -> None:
    made = perceptron(batch=2)
    # 8·4 + 8 and 3·8 + 3
    assert made.parameter_count == 67
    assert repr(made) == "Graph('small', 4 ops, 67 parameters, batch=2)"
