"""Networks that torchvision, timm and Transformers build."""

from __future__ import annotations

import importlib
import json
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from traincast.errors import IngestError, InputFileError, InvalidValueError, UnknownNameError
from traincast.ingest import resolve
from traincast.simulate.predict import predict

pytest.importorskip("torch", reason="tracing a module needs torch")

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
}  # fmt: skip
MAMBA = {
    "model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 50,
    "state_size": 4,
}  # fmt: skip
WHISPER = {
    "model_type": "whisper", "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "vocab_size": 50, "pad_token_id": 0, "decoder_start_token_id": 1,
    "encoder_layerdrop": 0.1,
}  # fmt: skip
WAV2VEC2 = {
    "model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"], "hidden_size": 32,
    "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 64, "layerdrop": 0.5,
    "conv_dim": [16, 16], "conv_stride": [5, 2], "conv_kernel": [10, 3], "vocab_size": 20,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0,
}  # fmt: skip
VIT = {
    "model_type": "vit", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "image_size": 32, "patch_size": 8,
}  # fmt: skip


def need(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"needs {package}")


@pytest.fixture
def transformers() -> ModuleType:
    need("transformers")
    from traincast.ingest.pytorch.sources import declare_torchvision_ops

    declare_torchvision_ops()
    return importlib.import_module("transformers")


def save(folder: Path, entries: object) -> str:
    path = folder / "config.json"
    path.write_text(entries if isinstance(entries, str) else json.dumps(entries))
    return f"hf:{path}"


# With d = 64, f = 128, 4 heads of 16 of which 2 for keys and values: embedding and head 100·d
# each; a layer has d·d for queries and for the output, 2·d·32 for keys and values, 3·d·f for the
# feed-forward part and 2·d for its norms; d for the last norm.
LLAMA_LAYER = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
LLAMA_ENDS = 2 * 100 * 64 + 64


def test_a_configuration_and_entries_changed_behind_a_question_mark(transformers, tmp_path) -> None:
    reference = save(tmp_path, LLAMA)
    assert resolve(reference).parameter_count == LLAMA_ENDS + 2 * LLAMA_LAYER
    more = resolve(f"{reference}?num_hidden_layers=3")
    assert more.parameter_count == LLAMA_ENDS + 3 * LLAMA_LAYER
    assert more.source.endswith("?num_hidden_layers=3")
    with pytest.raises(UnknownNameError, match="did you mean num_hidden_layers"):
        resolve(f"{reference}?num_hiden_layers=3")


def test_a_folder_stands_for_its_configuration_and_names_the_model(transformers, tmp_path) -> None:
    save(tmp_path, LLAMA)
    graph = resolve(f"hf:{tmp_path}")
    assert graph.name == tmp_path.name
    with pytest.raises(InputFileError, match="nothing is downloaded"):
        resolve("hf:meta-llama/Llama-3-8B")


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ("{", "not valid JSON"),
        ({}, 'has no "model_type"'),
        ({"model_type": "lama"}, "did you mean llama"),
        ({**LLAMA, "hidden_size": "big"}, "expected int"),
        ({**LLAMA, "architectures": ["LlamaForCauseLM"]}, "did you mean LlamaForCausalLM"),
        ({**LLAMA, "architectures": ["LlamaConfig"]}, "LlamaConfig"),
    ],
)
def test_malformed_configurations(transformers, tmp_path, entries, said: str) -> None:
    with pytest.raises((InputFileError, UnknownNameError, IngestError), match=said) as error:
        resolve(save(tmp_path, entries))
    assert "config.json" in str(error.value)


def test_an_architecture_may_be_given_as_text(transformers, tmp_path) -> None:
    graph = resolve(save(tmp_path, {**LLAMA, "architectures": "LlamaForCausalLM"}))
    assert graph.parameter_count == LLAMA_ENDS + 2 * LLAMA_LAYER


def test_images_are_for_models_of_images(transformers, tmp_path) -> None:
    with pytest.raises(InvalidValueError, match="takes no images"):
        resolve(save(tmp_path, LLAMA), image=32)
    reference = save(tmp_path, VIT)
    small, large = resolve(reference), resolve(reference, image=64)
    # 8×8 patches instead of 4×4, each with a position of 32.
    assert large.parameter_count - small.parameter_count == (64 - 16) * 32


def test_layers_are_not_dropped_at_random(transformers, tmp_path) -> None:
    graph = resolve(save(tmp_path, WHISPER))
    assert sum(op.kind == "attention" for op in graph.ops) == 3  # encoder, decoder, across
    assert any("no layer is dropped" in note for note in graph.notes)


def test_a_layer_that_a_configuration_would_drop_is_not_drawn_either(
    transformers, tmp_path
) -> None:
    """Its forward looks at labels, so that it runs with values, of which a random one drops."""
    graph = resolve(save(tmp_path, WAV2VEC2))
    assert sum(op.kind == "attention" for op in graph.ops) == 6
    assert "batch" not in graph.fixed
    one, three = (predict(graph, batch=b).step.flops[0] for b in (1, 3))
    assert three == 3 * one


def test_a_scan_is_held_at_its_length(transformers, tmp_path) -> None:
    reference = save(tmp_path, MAMBA)
    graph = resolve(reference, seq=8)
    assert (graph.seq, graph.fixed) == (8, ("seq",))
    config = transformers.AutoConfig.for_model(**MAMBA)
    real = transformers.MambaForCausalLM(config)
    assert graph.parameter_count == sum(p.numel() for p in real.parameters())
    one, three = (predict(graph, batch=b).step.flops[0] for b in (1, 3))
    assert three == 3 * one


def test_timm_names_tags_and_sizes() -> None:
    need("timm")
    with pytest.raises(UnknownNameError, match="did you mean resnet50"):
        resolve("timm:resnet5")
    with pytest.raises(UnknownNameError, match=r"leave out the tag: timm:resnet18"):
        resolve("timm:resnet18.nosuch")
    with pytest.raises(InvalidValueError, match="'nosuch'"):
        resolve("timm:resnet18?nosuch=3")
    small, large = (resolve("timm:vit_tiny_patch16_224", image=i) for i in (224, 384))
    # 24×24 patches instead of 14×14, each with a position of 192.
    assert large.parameter_count - small.parameter_count == (576 - 196) * 192
    # A convolutional network takes any size as it is: 11,689,512 parameters, as torchvision's.
    assert resolve("timm:resnet18", image=64).parameter_count == 11_689_512


def test_torchvision_downloads_nothing_and_refuses_detection(monkeypatch) -> None:
    need("torchvision")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("tried to download")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", refuse)
    monkeypatch.setattr("urllib.request.urlopen", refuse)
    graph = resolve("torchvision:lraspp_mobilenet_v3_large")
    assert graph.parameter_count == 3_221_538  # torchvision's documentation of its weights
    with pytest.raises(IngestError, match="images with boxes"):
        resolve("torchvision:fasterrcnn_resnet50_fpn")
    with pytest.raises(UnknownNameError, match="did you mean resnet50"):
        resolve("torchvision:resnet5")
    with pytest.raises(InvalidValueError, match="'depth'"):
        resolve("torchvision:resnet18?depth=3")
