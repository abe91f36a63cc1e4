"""The built-in networks made again from their sources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from importlib.metadata import PackageNotFoundError, version

import pytest

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.graph import graph_to_dict
from traincast.ingest import zoo_graph
from traincast.ingest.zoo import ENTRIES, module_source, rebuild

VERSIONS = json.loads((resources.files("traincast.ingest.zoo") / "versions.json").read_text())


def needed(name: str) -> Iterator[str]:
    prefix = ENTRIES[name].source.partition(":")[0]
    if prefix != "paleo":
        yield "torch"
    if prefix in ("torchvision", "transformers"):
        yield prefix


def skip_without(name: str, *, exactly: bool = False) -> None:
    for package in needed(name):
        try:
            found = version(package).partition("+")[0]
        except PackageNotFoundError:
            pytest.skip(f"{name} is made with {package}, which is not installed")
        if exactly and found != VERSIONS[package]:
            pytest.skip(f"{name} was made with {package} {VERSIONS[package]}; {found} is here")


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_source_gives_the_package_data(name: str) -> None:
    skip_without(name, exactly=True)
    assert graph_to_dict(rebuild(name)) == graph_to_dict(zoo_graph(name))


def test_an_image_size_changes_activations_and_no_parameter() -> None:
    skip_without("resnet18")
    small, large = zoo_graph("resnet18"), rebuild("resnet18", image=448)
    assert large.parameter_count == small.parameter_count
    sides = [g.tensors["conv1:out"].shape[-1].at(1, 0) for g in (small, large)]
    assert sides == [112, 224]


def test_a_larger_image_gives_a_vision_transformer_more_positions() -> None:
    skip_without("vit_b_16")
    graph = rebuild("vit_b_16", image=384)
    # 24×24 patches of 16 pixels instead of 14×14, each with a position of 768.
    assert graph.parameter_count == ENTRIES["vit_b_16"].parameters + (576 - 196) * 768


def test_builder_arguments_reach_the_source() -> None:
    skip_without("vgg16")
    graph = rebuild("vgg16", options={"num_classes": 10})
    assert graph.parameter_count == ENTRIES["vgg16"].parameters - 990 * 4097
    assert (graph.name, graph.source) == ("vgg16", "torchvision:vgg16?num_classes=10")


def test_entries_of_a_configuration_can_be_set() -> None:
    skip_without("gpt2")
    graph = rebuild("gpt2", options={"n_layer": 2})
    assert graph.parameter_count == ENTRIES["gpt2"].parameters - 10 * (12 * 768**2 + 13 * 768)
    with pytest.raises(UnknownNameError, match="did you mean n_layer"):
        rebuild("gpt2", options={"n_layers": 2})


def test_fixed_sizes_are_kept() -> None:
    skip_without("lstm-ptb")
    graph = rebuild("lstm-ptb", fixed=(3, 7))
    assert (graph.batch, graph.seq, graph.fixed) == (3, 7, ("batch", "seq"))


def test_an_alias_builds_the_network_it_stands_for() -> None:
    skip_without("lenet5")
    assert rebuild("lenet").name == "lenet5"


@pytest.mark.parametrize("name", ["gpt2", "dlrm", "mnist-small"])
def test_an_image_size_is_refused_where_it_means_nothing(name: str) -> None:
    skip_without(name)
    with pytest.raises(InvalidValueError, match=f"{name} takes"):
        rebuild(name, image=64)


@pytest.mark.parametrize("name", ["lenet5", "mnist-large", "unet", "lstm-ptb"])
def test_own_modules_run_on_real_tensors(name: str) -> None:
    skip_without(name)
    import torch

    source = module_source(name, options={"width": 8, "image": 32} if name == "unet" else {})
    args, _ = source.inputs(2, 5)
    out = source.build()(*(torch.zeros(a.shape, dtype=a.dtype) for a in args))
    assert out.shape == {"unet": (2, 2, 32, 32), "lstm-ptb": (2, 5, 10_000)}.get(name, (2, 10))
    assert out.isfinite().all()
