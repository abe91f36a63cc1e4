"""Where modules come from: torchvision, timm, Hugging Face configurations, users' functions."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from traincast.errors import (
    IngestError,
    InputFileError,
    InvalidValueError,
    MissingExtraError,
    UnknownNameError,
)
from traincast.ingest.pytorch.probe import Inputs, Source

Options = Mapping[str, Any]


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


def _images(channels: int, size: tuple[int, ...]) -> Inputs:
    def inputs(batch: int, _seq: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.zeros(batch, channels, *size),), {}

    return inputs


def torchvision_source(name: str, options: Options, image: int | None) -> Source:
    """Return a network of torchvision by name, with random weights."""
    package = _need("torchvision", "vision", f"torchvision:{name}")
    models = package.models
    if name not in models.list_models():
        raise UnknownNameError("torchvision model", name, models.list_models())
    reference = f"torchvision:{name}"

    usual: dict[str, Any] = {}
    if name in ("inception_v3", "googlenet"):
        usual["init_weights"] = False
    if image and name.startswith("vit_"):
        usual["image_size"] = image
    if image and name.startswith("maxvit_"):
        usual["input_size"] = (image, image)

    def build() -> torch.nn.Module:
        make = _call(
            lambda **o: models.get_model(name, weights=None, **o), {**usual, **options}, reference
        )
        assert isinstance(make, torch.nn.Module)
        return make

    size = image or (299 if name == "inception_v3" else 224)
    builder = models.get_model_builder(name)
    if "video" in builder.__module__:
        inputs = _images(3, (16, image or 112, image or 112))
    else:
        inputs = _images(3, (size, size))
    return Source(name=name, reference=_spell(reference, options), build=build, inputs=inputs)


def timm_source(name: str, options: Options, image: int | None) -> Source:
    """Return a network of timm by name, with random weights."""
    timm = _need("timm", "vision", f"timm:{name}")
    known = timm.list_models()
    if name.partition(".")[0] not in known:
        raise UnknownNameError("timm model", name, known)
    reference = f"timm:{name}"
    channels, height, width = timm.models.get_pretrained_cfg(
        name, allow_unregistered=True
    ).input_size
    extra = {}
    if image:
        height = width = image
        if "img_size" in inspect.signature(timm.models.model_entrypoint(name)).parameters:
            extra["img_size"] = image

    def build() -> torch.nn.Module:
        made = _call(
            lambda **o: timm.create_model(name, pretrained=False, **o),
            {**extra, **options},
            reference,
        )
        assert isinstance(made, torch.nn.Module)
        return made

    return Source(
        name=name,
        reference=_spell(reference, options),
        build=build,
        inputs=_images(channels, (height, width)),
    )


def hf_source(path: Path, options: Options, image: int | None) -> Source:
    """Return the Transformers model that a configuration file describes."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputFileError(path, f"cannot be read: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputFileError(path, f"is not valid JSON: {error}") from None
    if not isinstance(data, dict) or "model_type" not in data:
        raise InputFileError(
            path, 'has no "model_type"', "give the config.json of a Transformers model"
        )
    return hf_config_source({**data, **options}, path.stem, f"hf:{path}", image)


def hf_config_source(
    data: Mapping[str, Any], name: str, reference: str, image: int | None = None
) -> Source:
    """Return the Transformers model of a configuration given as plain data."""
    transformers = _need("transformers", "hf", reference)
    transformers.logging.set_verbosity_error()
    data = dict(data)
    kind = str(data.pop("model_type"))
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if kind not in known:
        raise UnknownNameError("model_type", kind, known.keys(), f"(in {reference})")
    architectures = data.pop("architectures", None) or []
    if "use_cache" not in data:
        data["use_cache"] = False
    try:
        config = transformers.AutoConfig.for_model(kind, **data)
    except Exception as error:
        first = str(error).strip().splitlines()[0]
        raise IngestError(
            f"{reference}: Transformers rejects the configuration: {first}"
        ) from error
    for decoder in (config, getattr(config, "decoder", None)):
        if getattr(config, "is_encoder_decoder", False) and decoder is not None:
            decoder.decoder_start_token_id = getattr(decoder, "decoder_start_token_id", None) or 0
            decoder.pad_token_id = getattr(decoder, "pad_token_id", None) or 0
    experts = ("num_local_experts", "num_experts", "n_routed_experts")
    if any(getattr(config, key, None) for key in experts):
        # Grouped products have shapes that do not depend on the routing, and are the fast path.
        config._experts_implementation = "grouped_mm"
    model_class = _hf_class(transformers, config, architectures, reference)
    main = getattr(model_class, "main_input_name", "input_ids")
    takes_labels = "labels" in inspect.signature(model_class.forward).parameters

    def build() -> torch.nn.Module:
        _forget_packing(transformers)
        model = model_class(config)
        assert isinstance(model, torch.nn.Module)
        return model

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

    text = main not in ("pixel_values",)
    longest = next(
        (
            int(getattr(config, key))
            for key in ("n_positions", "max_position_embeddings")
            if isinstance(getattr(config, key, None), int)
        ),
        512,
    )
    return Source(
        name=name,
        reference=reference,
        build=build,
        inputs=inputs,
        batch=8,
        seq=min(longest, 2048) if text else 0,
    )


def _hf_class(transformers: Any, config: Any, architectures: list[str], reference: str) -> Any:
    for name in architectures:
        found = getattr(transformers, name, None)
        if found is None:
            raise IngestError(
                f"{reference}: Transformers has no class {name!r}; "
                'give one that it has in "architectures"'
            )
        return found
    for auto in (
        "AutoModelForCausalLM",
        "AutoModelForSeq2SeqLM",
        "AutoModelForMaskedLM",
        "AutoModelForImageClassification",
        "AutoModel",
    ):
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


def function_source(target: str, function: str, options: Options, image: int | None) -> Source:
    """Return what a user's function builds: FILE.py:FUNCTION or package.module:FUNCTION.

    The function returns a module, or a module and example inputs. It is given `batch`, `seq` and
    `image` where it takes them. This is the one place that runs a user's code.
    """
    reference = f"{target}:{function}"
    make = _load_function(target, function, reference)
    takes = inspect.signature(make).parameters if not inspect.isclass(make) else {}
    for option in options:
        if option not in takes and not inspect.isclass(make):
            raise UnknownNameError(f"argument of {reference}", option, takes)

    def call(batch: int, seq: int) -> Any:
        given = {"batch": batch, "seq": seq, "image": image}
        wanted = {
            k: v for k, v in given.items() if k in takes and v is not None and k not in options
        }
        return _call(make, {**wanted, **options}, reference)

    def build() -> torch.nn.Module:
        made = call(2, 64)
        module = made[0] if isinstance(made, tuple | list) and made else made
        if not isinstance(module, torch.nn.Module):
            raise IngestError(
                f"{reference} returned {type(made).__name__}; it must return an nn.Module, "
                "or a tuple of an nn.Module and its example inputs"
            )
        return module

    def inputs(batch: int, seq: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        with torch.device("meta"):
            made = call(batch, seq)
        if not isinstance(made, tuple | list):
            side = image or 224
            return (torch.zeros(batch, 3, side, side),), {}
        example = made[1] if len(made) == 2 else tuple(made[1:])
        fed = tree_map(lambda t: _fresh(t, None if "batch" in takes else batch), example)
        if isinstance(fed, Mapping):
            return (), dict(fed)
        return (tuple(fed) if isinstance(fed, tuple | list) else (fed,)), {}

    return Source(
        name=function if function != "build" else Path(target).stem,
        reference=_spell(reference, options),
        build=build,
        inputs=inputs,
        seq=512 if "seq" in takes and "seq" not in options else 0,
    )


def _fresh(value: Any, batch: int | None) -> Any:
    """Return a tensor like an example, with the leading axis set to the batch."""
    if not isinstance(value, torch.Tensor):
        return value
    shape = list(value.shape)
    if batch is not None and shape:
        shape[0] = batch
    return torch.zeros(shape, dtype=value.dtype)


def _load_function(target: str, function: str, reference: str) -> Callable[..., Any]:
    with _importing(target) as module_name:
        try:
            module = (
                module_name() if callable(module_name) else importlib.import_module(module_name)
            )
        except InputFileError:
            raise
        except ModuleNotFoundError as error:
            raise IngestError(
                f"{reference}: {error}; check the name, or run from its folder"
            ) from error
        except Exception as error:
            from traincast.ingest.pytorch.probe import explain

            raise IngestError(explain(reference, error, "loading it")) from error
    found = getattr(module, function, None)
    if found is None:
        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UnknownNameError(f"function in {target}", function, names)
    if not callable(found):
        raise IngestError(f"{reference} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


@contextlib.contextmanager
def _importing(target: str) -> Iterator[Any]:
    if not target.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        try:
            yield target
        finally:
            sys.path.pop(0)
        return
    path = Path(target)
    if not path.is_file():
        raise InputFileError(path, "there is no such file")
    sys.path.insert(0, str(path.resolve().parent))

    def load() -> Any:
        name = f"traincast_user_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    try:
        yield load
    finally:
        sys.path.pop(0)


def _call(make: Callable[..., Any], options: Options, reference: str) -> Any:
    try:
        return make(**options)
    except TypeError as error:
        if "unexpected keyword argument" in str(error):
            raise InvalidValueError(
                f"{reference}: {str(error).rpartition('()')[2].strip() or error}; "
                "builder arguments follow the question mark"
            ) from error
        raise


def _spell(reference: str, options: Options) -> str:
    if not options:
        return reference
    return reference + "?" + "&".join(f"{k}={json.dumps(v)}" for k, v in options.items())
