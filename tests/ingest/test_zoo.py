"""The built-in networks against what was published about them."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.graph import KINDS, Graph, verify
from traincast.graph.kinds.base import Arg, Case, prod
from traincast.ingest import zoo_graph, zoo_names
from traincast.ingest.zoo import ALIASES, ENTRIES, rebuild

ROOT = Path(__file__).parents[2]

# torchvision 0.28, `num_params` and `_ops` (10⁹ multiply-adds, batch 1, evaluation) in the metadata
# of the IMAGENET1K_V1 weights.
TORCHVISION = {
    "alexnet": (61_100_840, 0.714),
    "vgg11": (132_863_336, 7.609),
    "vgg16": (138_357_544, 15.470),
    "vgg19": (143_667_240, 19.632),
    "googlenet": (6_624_904, 1.498),
    "inception_v3": (27_161_264, 5.713),
    "resnet18": (11_689_512, 1.814),
    "resnet34": (21_797_672, 3.664),
    "resnet50": (25_557_032, 4.089),
    "resnet101": (44_549_160, 7.801),
    "resnet152": (60_192_808, 11.514),
    "resnext50_32x4d": (25_028_904, 4.230),
    "wide_resnet50_2": (68_883_240, 11.398),
    "densenet121": (7_978_856, 2.834),
    "mobilenet_v2": (3_504_872, 0.301),
    "mobilenet_v3_small": (2_542_856, 0.057),
    "mobilenet_v3_large": (5_483_032, 0.217),
    "efficientnet_b0": (5_288_548, 0.386),
    "efficientnet_b4": (19_341_616, 4.394),
    "squeezenet1_0": (1_248_424, 0.819),
    "squeezenet1_1": (1_235_496, 0.349),
    "shufflenet_v2_x1_0": (2_278_604, 0.145),
    "mnasnet1_0": (4_383_312, 0.314),
    "regnet_y_400mf": (4_344_144, 0.402),
    "regnet_y_8gf": (39_381_472, 8.473),
    "convnext_tiny": (28_589_128, 4.456),
    "convnext_base": (88_591_464, 15.355),
    "swin_t": (28_288_354, 4.491),
    "swin_b": (87_768_224, 15.431),
    "vit_b_16": (86_567_656, 17.564),
    "vit_l_16": (304_326_632, 61.555),
    "maxvit_t": (30_919_624, 5.558),
}


def _bert(layers: int, d: int) -> int:
    """Embeddings and their norm, 4 projections, 2 feed-forward, 2 norms; head ties its matrix."""
    block = 4 * (d * d + d) + (4 * d * d + 4 * d) + (4 * d * d + d) + 4 * d
    return (30522 + 512 + 2) * d + 2 * d + layers * block + (d * d + d) + 2 * d + 30522


def _gpt2(layers: int, d: int) -> int:
    return (50257 + 1024) * d + layers * (12 * d * d + 13 * d) + 2 * d


def _t5(layers: int, d: int, heads: int, inner: int) -> int:
    """Encoder block: 4 projections, 2 feed-forward, 2 norms; decoder block: 4 and a norm more."""
    width = heads * 64
    encoder = 4 * d * width + 2 * d * inner + 2 * d
    decoder = encoder + 4 * d * width + d
    return 32128 * d + layers * (encoder + decoder) + 2 * (32 * heads + d)


def _llama(layers: int, d: int, heads: int, inner: int, matrices: int) -> int:
    block = 2 * d * d + 2 * d * (8 * d // heads) + 3 * d * inner + 2 * d
    return matrices * 128256 * d + layers * block + d


# Transformers: the count of the released weights, and the same by hand from the sizes in the paper.
TRANSFORMERS = {
    "bert-base": (109_514_298, _bert(12, 768)),
    "bert-large": (335_174_458, _bert(24, 1024)),
    "gpt2": (124_439_808, _gpt2(12, 768)),
    "gpt2-medium": (354_823_168, _gpt2(24, 1024)),
    "gpt2-large": (774_030_080, _gpt2(36, 1280)),
    "gpt2-xl": (1_557_611_200, _gpt2(48, 1600)),
    "t5-small": (60_506_624, _t5(6, 512, 8, 2048)),
    "t5-base": (222_903_552, _t5(12, 768, 12, 3072)),
    "llama-3.2-1b": (1_235_814_400, _llama(16, 2048, 32, 8192, 1)),
    "llama-3.2-3b": (3_212_749_824, _llama(28, 3072, 24, 8192, 1)),
    "llama-3.1-8b": (8_030_261_248, _llama(32, 4096, 32, 14336, 2)),
    "llama-3.1-70b": (70_553_706_496, _llama(80, 8192, 64, 28672, 2)),
    "llama-3.1-405b": (405_853_388_800, _llama(126, 16384, 128, 53248, 2)),
    "mixtral-8x7b": (
        46_702_792_704,
        2 * 32000 * 4096
        + 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 8 * 4096 + 8 * 3 * 4096 * 14336 + 2 * 4096)
        + 4096,
    ),
}

# By hand from the layers of the publication: convolution out·(in·k² + 1), fully connected
# out·(in + 1).
BY_HAND = {
    "lenet5": 6 * 26 + 16 * (6 * 25 + 1) + 120 * 401 + 84 * 121 + 10 * 85,
    "mnist-small": 85 + 1_260 + 4_550 + 510,
    "mnist-medium": 340 + 20_040 + 54_150 + 1_510,
    "mnist-large": 340 + 30_060 + 216_100 + 135_150 + 1_510,
    "lstm-ptb": 10_000 * 650 + 2 * 4 * 650 * (650 + 650 + 2) + 10_000 * 651,
    "dlrm": 16 * 33_762_577
    + (512 * 14 + 256 * 513 + 64 * 257 + 16 * 65)
    + (512 * (16 + 27 * 26 // 2 + 1) + 256 * 513 + 257),
    "unet": sum(
        out * (9 * c + 1) + out * (9 * out + 1)
        for c, out in ((1, 64), (64, 128), (128, 256), (256, 512), (512, 1024))
    )
    + sum(w * (4 * 2 * w + 1) + w * (9 * 2 * w + 1) + w * (9 * w + 1) for w in (64, 128, 256, 512))
    + 2 * 65,
}

# Paleo's own summary of its network files.
PALEO = {"alex_v2": 50_303_912, "nin": 7_595_176, "overfeat": 145_704_424}

PUBLISHED = {
    **{name: count for name, (count, _) in TORCHVISION.items()},
    **{name: count for name, (count, _) in TRANSFORMERS.items()},
    **BY_HAND,
    **PALEO,
}


def test_the_table_and_the_package_data_name_the_same_networks() -> None:
    assert zoo_names() == sorted(ENTRIES) == sorted(PUBLISHED)


def test_aliases_lead_to_networks_and_hide_none() -> None:
    assert set(ALIASES.values()) <= set(ENTRIES)
    assert not set(ALIASES) & set(ENTRIES)


@pytest.mark.parametrize("name", ENTRIES)
def test_parameter_count_is_the_published_one(name: str) -> None:
    graph = zoo_graph(name)
    assert graph.parameter_count == PUBLISHED[name]
    assert ENTRIES[name].parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_published_count_follows_from_the_sizes_in_the_paper(name: str) -> None:
    published, by_hand = TRANSFORMERS[name]
    assert published == by_hand


@pytest.mark.parametrize("name", ENTRIES)
def test_graph_is_valid_and_described(name: str) -> None:
    graph, entry = zoo_graph(name), ENTRIES[name]
    verify(graph)
    assert (graph.name, graph.source) == (name, entry.source)
    assert (graph.batch, graph.seq, graph.fixed) == (entry.batch, entry.seq, ())
    assert graph.has_sequence == bool(entry.seq)
    assert not [op.name for op in graph.ops if op.kind == "unknown"]
    read = {tensor for op in graph.ops for tensor in op.inputs}
    assert not [p.name for p in graph.parameters if p.name not in read]


@pytest.mark.parametrize("name", TORCHVISION)
def test_multiply_adds_are_those_that_torchvision_publishes(name: str) -> None:
    # Published for evaluation, in which the auxiliary head of Inception does not run.
    found = forward_flops(zoo_graph(name), batch=1, skip="AuxLogits") / 2e9
    assert found == pytest.approx(TORCHVISION[name][1], abs=6e-4)


def test_flops_of_llama_405b_follow_from_its_parameters() -> None:
    # 2 FLOPs for each weight but the embedding, and 4·d·S² for the scores and sums of a layer.
    graph, seq = zoo_graph("llama-3.1-405b"), 8192
    vectors = (2 * 126 + 1) * 16384
    weights = graph.parameter_count - 128256 * 16384 - vectors
    expected = 2 * weights * seq + 126 * 4 * 16384 * seq**2
    assert forward_flops(graph, batch=1, seq=seq) == pytest.approx(expected, rel=1e-9)


def forward_flops(graph: Graph, *, batch: int, seq: int = 0, skip: str = "") -> float:
    """FLOPs of the products in the forward pass."""

    def arg(name: str) -> Arg:
        tensor = graph.tensors[name]
        shape = tuple(size.at(batch, seq) for size in tensor.shape)
        return Arg(shape, prod(shape), 4, False, tensor.role)

    found = 0.0
    for op in graph.ops:
        if op.kind in ("conv", "linear", "matmul", "attention") and not (
            skip and op.layer.startswith(skip)
        ):
            case = Case(op.attrs, tuple(map(arg, op.inputs)), tuple(map(arg, op.outputs)))
            found += sum(kernel.flops for kernel in KINDS[op.kind].costs(case).forward)
    return found


def test_torchvision_still_publishes_these_figures() -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    from traincast.ingest.pytorch.sources import declare_torchvision_ops

    declare_torchvision_ops()
    models = pytest.importorskip("torchvision", reason="needs torchvision").models
    for name, (count, multiply_adds) in TORCHVISION.items():
        meta = models.get_model_weights(name)["IMAGENET1K_V1"].meta
        assert (meta["num_params"], meta["_ops"]) == (count, multiply_adds), name


LIGHT = (
    "import sys; from traincast.ingest.zoo import ENTRIES; from traincast.ingest import zoo_graph; "
    "zoo_graph('gpt2'); sys.exit(bool({'torch', 'torchvision', 'transformers'} & set(sys.modules)))"
)


def test_reading_the_zoo_imports_no_framework() -> None:
    assert subprocess.run([sys.executable, "-c", LIGHT], check=False).returncode == 0


def test_rebuilding_without_torch_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from traincast.errors import MissingExtraError\n"
        "from traincast.ingest.zoo import rebuild\n"
        "try: rebuild('resnet50', image=256)\n"
        "except MissingExtraError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "'resnet50' needs the package 'torch'" in done.stdout
    assert "pip install 'traincast[torch]'" in done.stdout


def test_an_unknown_network_is_answered_with_near_names() -> None:
    with pytest.raises(UnknownNameError, match="did you mean resnet50"):
        rebuild("resnet500")


def test_a_paleo_network_takes_no_image_size() -> None:
    with pytest.raises(InvalidValueError, match="alex_v2 is a fixed network"):
        rebuild("alex_v2", image=64)


def test_the_documented_table_is_that_of_the_entries() -> None:
    table = runpy.run_path(str(ROOT / "scripts" / "build-zoo"))["table"]()
    assert table in (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8")


def test_the_package_data_stay_small() -> None:
    folder = ROOT / "src" / "traincast" / "ingest" / "zoo"
    assert sum(file.stat().st_size for file in folder.glob("*.json.gz")) < 3e6
