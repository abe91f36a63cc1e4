"""Where modules come from: torchvision, timm, Hugging Face configurations, users' functions."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from traincast.errors import (
    IngestError,
    InvalidValueError,
    MissingExtraError,
    UnknownNameError,
)
from traincast.ingest.pytorch.functions import Options, call_builder, function_source
from traincast.ingest.pytorch.probe import Inputs, Source
from traincast.ingest.pytorch.timm_names import current_name
from traincast.ingest.references import spell
from traincast.ingest.traced import config_file

__all__ = [
    "declare_torchvision_ops",
    "function_source",
    "hf_config_source",
    "hf_source",
    "timm_source",
    "torchvision_source",
]


def _need(package: str, extra: str, what: str) -> Any:
    declare_torchvision_ops()
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(package, extra, what) from error


_declared: list[Any] = []


def declare_torchvision_ops() -> None:
    """Declare two operators that torchvision refers to on import.

    Its compiled part does not load beside a PyTorch build of another kind (CPU or CUDA), and then
    the import fails although nothing here needs that part.
    """
    if _declared:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)


def _images(channels: int, size: tuple[int, ...], count: int = 1) -> Inputs:
    def inputs(batch: int, _seq: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(torch.zeros(batch, channels, *size) for _ in range(count)), {}

    return inputs


def torchvision_source(name: str, options: Options, image: int | None) -> Source:
    """Return a network of torchvision by name, with random weights."""
    package = _need("torchvision", "vision", f"torchvision:{name}")
    models = package.models
    if name not in models.list_models():
        raise UnknownNameError("torchvision model", name, models.list_models())
    reference = f"torchvision:{name}"
    builder = models.get_model_builder(name)
    field = builder.__module__
    if ".detection." in field:
        raise IngestError(
            f"{reference} trains on images with boxes, and what it runs depends on them; wrap it "
            "in a FILE.py:FUNCTION whose forward takes and returns tensors of fixed sizes"
        )
    usual: dict[str, Any] = {}
    if name in ("inception_v3", "googlenet"):
        usual["init_weights"] = False
    if "weights_backbone" in inspect.signature(builder).parameters:
        usual["weights_backbone"] = None
    if image and name.startswith("vit_"):
        usual["image_size"] = image
    if image and name.startswith("maxvit_"):
        usual["input_size"] = (image, image)

    def build() -> torch.nn.Module:
        make = call_builder(
            lambda **o: models.get_model(name, weights=None, **o), {**usual, **options}, reference
        )
        assert isinstance(make, torch.nn.Module)
        return make

    size = image or (299 if name == "inception_v3" else 224)
    shape = (16, image or 112, image or 112) if "video" in field else (size, size)
    inputs = _images(3, shape, count=2 if ".optical_flow." in field else 1)
    return Source(name=name, reference=spell(reference, options), build=build, inputs=inputs)


def timm_source(name: str, options: Options, image: int | None) -> Source:
    """Return a network of timm by name, with random weights."""
    timm = _need("timm", "vision", f"timm:{name}")
    name = current_name(timm, name)
    known = timm.list_models()
    base, _, tag = name.partition(".")
    if base not in known:
        raise UnknownNameError("timm model", name, known)
    tags = timm.list_pretrained(f"{base}.*") if tag else []
    if tag and name not in tags:
        raise UnknownNameError("timm model", name, tags, f"or leave out the tag: timm:{base}")
    reference = f"timm:{name}"
    channels, height, width = timm.models.get_pretrained_cfg(
        name, allow_unregistered=True
    ).input_size

    def create(**given: Any) -> Any:
        try:
            sized = {"img_size": image, **given} if image else given
            return timm.create_model(name, pretrained=False, **sized)
        except TypeError as error:
            if "img_size" not in str(error):
                raise
            return timm.create_model(name, pretrained=False, **given)  # takes any size as it is

    def build() -> torch.nn.Module:
        made = call_builder(create, options, reference)
        assert isinstance(made, torch.nn.Module)
        return made

    size = (image, image) if image else (height, width)
    return Source(
        name=name,
        reference=spell(reference, options),
        build=build,
        inputs=_images(channels, size),
    )


def hf_source(path: Path, options: Options, image: int | None) -> Source:
    """Return the Transformers model that a configuration file, or its folder, describes."""
    path, name, data = config_file(path)
    return hf_config_source(data, name, f"hf:{path}", image, options)


_RATES = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
"""Probabilities of dropping whole layers, of modules or in their configuration."""


def hf_config_source(
    data: Mapping[str, Any],
    name: str,
    reference: str,
    image: int | None = None,
    options: Options | None = None,
) -> Source:
    """Return the Transformers model of a configuration given as plain data."""
    transformers = _need("transformers", "hf", reference)
    transformers.logging.set_verbosity_error()
    config, architectures = _hf_config(transformers, dict(data), reference, image, options or {})
    reference = spell(reference, options or {})
    model_class = _hf_class(transformers, config, architectures, reference)
    main = getattr(model_class, "main_input_name", "input_ids")
    if image is not None and main != "pixel_values":
        raise InvalidValueError(f"{reference} takes no images; leave out the image size")

    def build() -> torch.nn.Module:
        _forget_packing(transformers)
        model = model_class(config)
        assert isinstance(model, torch.nn.Module)
        for owner in [*model.modules(), getattr(model, "config", None)]:
            for rate in _RATES:
                if isinstance(getattr(owner, rate, None), float | int):
                    object.__setattr__(owner, rate, _NeverDrops())
        return model

    longest = next(
        (
            int(getattr(config, key))
            for key in ("n_positions", "max_position_embeddings")
            if isinstance(getattr(config, key, None), int)
        ),
        512,
    )
    drops = any(getattr(config, key, 0) for key in _RATES)
    return Source(
        name=name,
        reference=reference,
        build=build,
        inputs=_hf_inputs(model_class, config, main, image),
        batch=8,
        seq=min(longest, 2048) if main != "pixel_values" else 0,
        notes=("no layer is dropped, though the configuration has a rate for it",) if drops else (),
    )


def _hf_config(
    transformers: Any, data: dict[str, Any], reference: str, image: int | None, options: Options
) -> tuple[Any, list[str]]:
    """Return the configuration and the model classes that it names."""
    kind = str(data.pop("model_type"))
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if kind not in known:
        raise UnknownNameError("model_type", kind, known.keys(), f"(in {reference})")
    architectures = data.pop("architectures", None) or []
    _check_entries(known[kind], data, options, reference)
    data |= options
    if "use_cache" not in data:
        data["use_cache"] = False
    if image is not None and isinstance(getattr(_defaults(known[kind]), "image_size", None), int):
        data["image_size"] = image
    try:
        config = transformers.AutoConfig.for_model(kind, **data)
    except Exception as error:
        said = " ".join(str(error).split())[:300] or type(error).__name__
        raise IngestError(f"{reference}: Transformers rejects the configuration: {said}") from error
    for decoder in (config, getattr(config, "decoder", None)):
        if getattr(config, "is_encoder_decoder", False) and decoder is not None:
            decoder.decoder_start_token_id = getattr(decoder, "decoder_start_token_id", None) or 0
            decoder.pad_token_id = getattr(decoder, "pad_token_id", None) or 0
    experts = ("num_local_experts", "num_experts", "n_routed_experts")
    if any(getattr(config, key, None) for key in experts):
        # Grouped products have shapes that do not depend on the routing, and are the fast path.
        config._experts_implementation = "grouped_mm"
    return config, [architectures] if isinstance(architectures, str) else architectures


def _hf_inputs(model_class: Any, config: Any, main: str, image: int | None) -> Inputs:
    takes_labels = "labels" in inspect.signature(model_class.forward).parameters

    def inputs(batch: int, seq: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        feed: dict[str, Any] = {}
        if main == "pixel_values":
            size: Any = image or getattr(config, "image_size", 224)
            height, width = (size, size) if isinstance(size, int) else tuple(size)
            feed[main] = torch.zeros(batch, getattr(config, "num_channels", 3), height, width)
        elif main == "input_features":
            feed[main] = torch.zeros(batch, config.num_mel_bins, 2 * config.max_source_positions)
        elif main == "input_values":
            feed[main] = torch.zeros(batch, seq * 320 + 80)
        else:
            feed[main] = torch.zeros(batch, seq, dtype=torch.int64)
        if takes_labels:
            whole = any(s in model_class.__name__ for s in ("Classification", "Regression"))
            per_token = "TokenClassification" in model_class.__name__ or not whole
            shape = (batch, seq) if per_token and seq else (batch,)
            feed["labels"] = torch.zeros(shape, dtype=torch.int64)
        return (), feed

    return inputs


def _defaults(config_class: Any) -> Any:
    try:
        return config_class()
    except Exception:  # a configuration without defaults says nothing about its entries
        return None


def _check_entries(
    config_class: Any, data: Mapping[str, Any], options: Options, reference: str
) -> None:
    """Refuse an entry that the configuration does not have: Transformers keeps it unread."""
    defaults = _defaults(config_class)
    if defaults is None:
        return
    for option in options:
        if option not in data and not hasattr(defaults, option):
            entries = [n for n in defaults.to_dict() if not n.startswith("_")]
            raise UnknownNameError(f"entry of {reference}", option, entries)


class _NeverDrops(float):
    """A rate of layer dropping that decides without looking at random values: run every layer.

    Models draw a number and compare it to this rate; without values there is none to compare.
    """

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> bool:
        return False


def _hf_class(transformers: Any, config: Any, architectures: list[str], reference: str) -> Any:
    for name in architectures:
        found = getattr(transformers, str(name), None)
        if not (inspect.isclass(found) and issubclass(found, torch.nn.Module)):
            models = [n for n in dir(transformers) if "For" in n or n.endswith("Model")]
            hint = f'(in "architectures" of {reference})'
            raise UnknownNameError("model class of Transformers", str(name), models, hint)
        return found
    pairs = ["AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq"]
    alone = ["AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForImageClassification"]
    # Half of an encoder and decoder serves as a causal model too, and is not what is meant.
    first = pairs + alone if getattr(config, "is_encoder_decoder", False) else alone
    for auto in (*first, "AutoModel"):
        mapping = getattr(transformers, auto)._model_mapping
        if type(config) in mapping:
            return mapping[type(config)]
    raise IngestError(f'{reference}: name the model class in "architectures"')


def _forget_packing(transformers: Any) -> None:
    """Assume that a batch holds one sequence a row.

    In a real run Transformers looks at the values to find rows that pack several sequences, finds
    none and goes on without a mask. Without values it cannot look, and would build the mask.
    """
    masking = getattr(transformers, "masking_utils", None)
    original = getattr(masking, "find_packed_sequence_indices", None)
    if original is None or getattr(original, "assumes_unpacked", False):
        return

    def unpacked(position_ids: Any) -> Any:
        found = original(position_ids)
        return None if type(position_ids).__name__ == "FakeTensor" else found

    unpacked.assumes_unpacked = True  # type: ignore[attr-defined]
    masking.find_packed_sequence_indices = unpacked  # type: ignore[union-attr]
