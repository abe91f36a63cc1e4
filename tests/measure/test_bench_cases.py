"""Every case that the benchmark can draw runs, and says what it ran."""

from __future__ import annotations

import ast
import itertools
import random
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from traincast.measure import rows
from traincast.measure.bench import emit, host, images, memory, products, runner, system
from traincast.measure.bench.groups import Group
from traincast.measure.bench.shapes import conv_shapes, transposed_shapes
from traincast.measure.bench.timing import HERE


@pytest.fixture(autouse=True)
def _on_the_cpu() -> None:
    runner.start("cpu")


SMALL = {
    "gemm": [
        ({"m": 5, "n": 8, "k": 16, "batch": 1}, "form", ("forward", "data", "weight")),
        ({"m": 5, "n": 8, "k": 16, "batch": 2}, "form", ("batched",)),
    ],
    "attention": [
        ({"b": 1, "heads": 4, "kv": kv, "seq": 9, "d": 8, "causal": True}, "form",
         ("forward", "both"))
        for kv in (4, 1)
    ] + [
        ({"b": 1, "heads": 4, "kv": 4, "seq": 9, "keys": 5, "d": 8, "causal": False, "mask": mask},
         "form", ("forward", "both"))
        for mask in ("", "plain", "learned")
    ],
    "rnn": [
        ({"cell": cell, "b": 2, "seq": 3, "input": 4, "hidden": 5, "layers": 2, "both_ways": True},
         "form", ("forward", "both"))
        for cell in ("lstm", "gru")
    ],
    "stream": [
        ({"rows": 6, "columns": 64}, "op", memory._STREAMS),
        ({"rows": 10, "columns": 64, "seq": 5, "d": 32}, "op", ("heads", "heads_back")),
    ],
    "row": [
        ({"rows": 6, "columns": 10}, "op", ops)
        for ops in (memory._NORMS, memory._LOSSES, memory._PICKS)
    ] + [({"rows": 6, "columns": 10, "width": 8}, "op", ("embedding", "embedding_backward"))],
    "turned": [
        ({"rows": 10, "columns": 6, "seq": 5}, "op", ("add_turned", "mul_turned")),
    ],
    "image": [
        ({"n": 2, "c": 32, "size": 14, "layout": layout}, "op", ops)
        for layout in ("nchw", "nhwc") for ops in (images._SINGLE, images._RESIZES)
    ] + [({"n": 2, "c": 4, "size": 14, "layout": "nhwc"}, "op", images._MOVES)],
    "update": [({"tensors": 3, "elements": 5}, "op", (op,)) for op in system._UPDATES],
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("family", SMALL)
def test_every_kernel_runs(family: str, dtype: str) -> None:
    for keys, vary, values in SMALL[family]:
        group = Group(family, {**keys, "dtype": dtype}, vary, values)
        calls = runner.FAMILIES[family][1](group)
        for value in values:
            calls[value]()


def test_gradients_of_a_convolution_are_those_of_autograd() -> None:
    keys = {"n": 2, "cin": 4, "cout": 6, "size": 9, "kernel": 1, "kernel_w": 3, "stride": 2,
            "groups": 2, "layout": "nhwc", "dtype": "fp32"}  # fmt: skip
    calls = products.conv(Group("conv", keys, "form", ("forward", "data", "weight")))
    y, (data, _, _), (_, weight, _) = (calls[form]() for form in ("forward", "data", "weight"))
    assert y.shape == (2, 6, 5, 5)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert (data.shape, weight.shape) == ((2, 4, 9, 9), (6, 2, 1, 3))


def test_a_convolution_over_sequences_has_one_axis() -> None:
    keys = {"n": 2, "cin": 4, "cout": 6, "size": 9, "kernel": 3, "stride": 2, "groups": 1,
            "axes": 1, "layout": "nchw", "dtype": "fp32"}  # fmt: skip
    calls = products.conv(Group("conv", keys, "form", ("forward", "data", "weight")))
    assert calls["forward"]().shape == (2, 6, 5)
    assert calls["weight"]()[1].shape == (6, 4, 3)


def test_a_window_over_one_axis_of_a_volume() -> None:
    keys = {"n": 2, "cin": 4, "cout": 6, "size": 5, "depth": 3, "kernel": 3, "kernel_d": 1,
            "stride": 1, "groups": 1, "axes": 3, "layout": "nchw", "dtype": "fp32"}  # fmt: skip
    calls = products.conv(Group("conv", keys, "form", ("forward", "data", "weight")))
    assert calls["forward"]().shape == (2, 6, 3, 5, 5)
    assert calls["weight"]()[1].shape == (6, 4, 1, 3, 3)


@pytest.mark.parametrize("family", ["odd_product", "odd_conv", "crossed", "turned"])
def test_what_is_chosen_by_hand_is_known_to_the_kernel_models(family: str) -> None:
    """Each drawn case becomes a kernel with work, and a library away from 8 or 64 is asked."""
    for group in itertools.islice(runner.groups(0, [family]), 40):
        assert group.family in ("gemm", "conv", "attention", "turned")
        for value in group.values:
            found = rows.kernel_of({"family": group.family, **group.keys, group.vary: value})
            if found is not None:
                assert found[1].read > 0
                assert found[1].write > 0


def test_small_images_that_are_joined_have_one_width() -> None:
    """Rows are read without torch, so that the width stands in two places."""
    assert images.GROWTH == rows.GROWTH


def test_other_families_and_types_can_be_left_out() -> None:
    drawn = itertools.islice(runner.groups(0, ["row", "launch"], ["fp32"]), 30)
    assert {(g.family, g.keys["dtype"]) for g in drawn} == {("launch", "fp32"), ("row", "fp32")}
    assert [g.family for g in runner.groups(0, ["launch"])] == ["launch"]


def test_a_transposed_convolution_grows_the_image() -> None:
    shape = transposed_shapes()[0]
    keys = {"n": 1, **shape, "size": 4, "layout": "nchw", "dtype": "fp32"}
    calls = products.conv(Group("conv", keys, "form", ("t_forward", "t_data", "t_weight")))
    assert calls["t_forward"]().shape == (1, shape["cout"], 8, 8)
    assert calls["t_data"]()[0].shape == (1, shape["cin"], 4, 4)
    assert calls["t_weight"]()[1].shape[:2] == (shape["cin"], shape["cout"])


def test_the_table_of_shapes_has_what_well_known_networks_use() -> None:
    found = conv_shapes()
    assert len({tuple(sorted(shape.items())) for shape in found}) == len(found)
    assert 400 < len(found) <= 1600
    stem = {"cin": 3, "cout": 64, "size": 224, "kernel": 7, "stride": 2, "groups": 1}  # ResNet
    patch = {"cin": 3, "cout": 768, "size": 224, "kernel": 16, "stride": 16, "groups": 1,
             "padding": 0}  # ViT  # fmt: skip
    block = {"cin": 384, "cout": 384, "size": 14, "kernel": 7, "stride": 1, "groups": 384}
    deep = {"cin": 512, "cout": 512, "size": 14, "kernel": 7, "stride": 1, "groups": 512}
    wide = {"cin": 128, "cout": 160, "size": 17, "kernel": 1, "stride": 1, "groups": 1,
            "kernel_w": 7}  # Inception  # fmt: skip
    for shape in (stem, patch, block, deep, wide):
        assert shape in found
    for shape in found:
        assert shape["cin"] % shape["groups"] == shape["cout"] % shape["groups"] == 0


@pytest.mark.parametrize(("device", "least", "most"), [("cuda", 130, 190), ("cpu", 20, 100)])
def test_convolutions_come_in_both_layouts_and_images_need_no_gradient(
    device: str, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HERE, "device", device)
    drawn = list(itertools.islice(products.conv_groups(random.Random(1)), 400))
    assert least <= Counter(g.keys["layout"] for g in drawn)["nhwc"] <= most
    for group in drawn:
        assert ("data" in group.values) == (
            group.keys["cin"] not in (1, 3) and "t_forward" not in group.values
        )
        assert group.bytes < 7e9
    if device == "cuda":  # two bytes an element: always in both layouts, but for sequences
        half = [g.keys for g in drawn if g.keys["dtype"] == "bf16" and "axes" not in g.keys]
        counts = Counter(keys["layout"] for keys in half)
        assert abs(counts["nchw"] - counts["nhwc"]) <= 1


@pytest.mark.parametrize("family", runner.FAMILIES)
def test_the_same_seed_draws_the_same_cases(family: str) -> None:
    draw = runner.FAMILIES[family][0]
    first, again, other = (
        [g.cases() for g in itertools.islice(draw(random.Random(seed)), 100)] for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


def test_host_rows_cover_forms_layouts_and_autocast() -> None:
    cases = [case for group in host.host_groups(random.Random(0)) for case in group.cases()]
    assert len({runner.case_key(case) for case in cases}) == len(cases)
    assert {c["form"] for c in cases} == {"infer", "forward", "backward", "step"}
    assert {c["layout"] for c in cases if c["op"] == "conv2d"} == {"nchw", "nhwc"}
    assert any(c["autocast"] and c["op"] == "linear" for c in cases)


@pytest.mark.parametrize(
    ("op", "form", "autocast"),
    [("linear", "forward", True), ("relu_", "backward", False), ("chunk", "backward", False),
     ("layer_norm", "infer", True)],
)  # fmt: skip
def test_host_time_of_an_op(op: str, form: str, autocast: bool) -> None:
    found = host.host_time({"op": op, "form": form, "autocast": autocast})
    assert found["seconds"] > 0


def test_modules_can_be_joined() -> None:
    """Names at the top level of the modules are unique, and they import nothing but torch."""
    names: Counter[str] = Counter()
    for module in emit.MODULES:
        tree = ast.parse((Path(emit.__file__).parent / f"{module}.py").read_text())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names[node.name] += 1
            elif isinstance(node, ast.Assign):
                names.update(t.id for t in node.targets if isinstance(t, ast.Name))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names[node.target.id] += 1
    assert [name for name, count in names.items() if count > 1] == []
    assert "traincast" not in emit.emit()
