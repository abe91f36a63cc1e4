"""A user's function as a source: FILE.py:FUNCTION or package.module:FUNCTION.

The function returns a module, or a module and example inputs. It is given `batch`, `seq` and
`image` where it takes them. This is the one place that runs a user's code, and whatever goes wrong
in it names the user's own line.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_flatten, tree_map

from traincast.errors import (
    IngestError,
    InputFileError,
    InvalidValueError,
    UnknownNameError,
    UsageError,
)
from traincast.ingest.pytorch.probe import Source, explain
from traincast.ingest.references import spell

Options = Mapping[str, Any]

_SIDE = 224
_MUST_RETURN = "it must return an nn.Module, or a tuple of an nn.Module and its example inputs"


def function_source(target: str, function: str, options: Options, image: int | None) -> Source:
    """Return what a user's function (or class) builds, ready to be traced or run."""
    reference = f"{target}:{function}"
    make = load_function(target, function)
    takes = _parameters(make)
    sized = {} if inspect.isclass(make) else takes
    _check_options(reference, takes, options, image)
    examples: dict[tuple[int, int, bool], Any] = {}

    def call(batch: int, seq: int) -> Any:
        given = {"batch": batch, "seq": seq, "image": image}
        wanted = {
            k: v for k, v in given.items() if k in sized and v is not None and k not in options
        }
        with on_path(target):
            made = call_builder(make, {**wanted, **options}, reference)
        module = made[0] if isinstance(made, tuple | list) and made else made
        if not isinstance(module, torch.nn.Module):
            if inspect.iscoroutine(made):
                made.close()
            what = "None" if made is None else f"a {type(made).__name__}"
            raise IngestError(f"{reference} returned {what}; {_MUST_RETURN}")
        return made

    def build() -> torch.nn.Module:
        made = call(2, 64)
        module: torch.nn.Module = made[0] if isinstance(made, tuple | list) else made
        return module

    def example(batch: int, seq: int, valued: bool = False) -> Any:
        key = (batch if "batch" in sized else 0, seq if "seq" in sized else 0, valued)
        if key not in examples:
            made = _without_weights(lambda: call(batch, seq), reference, valued)
            if not isinstance(made, tuple | list):
                examples[key] = None
            else:
                examples[key] = made[1] if len(made) == 2 else tuple(made[1:])
        return examples[key]

    def inputs(batch: int, seq: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        found = example(batch, seq)
        if found is None:
            side = image or _SIDE
            return (torch.zeros(batch, 3, side, side),), {}
        real = torch.zeros(0).device.type != "meta" and not isinstance(torch.zeros(0), FakeTensor)
        if real and _has_whole_numbers(found):
            # A length or an index that is zero is often none at all.
            found = example(batch, seq, True)
        fed = _fresh(found, None if "batch" in sized else batch)
        if isinstance(fed, Mapping):
            return (), dict(fed)
        return (tuple(fed) if isinstance(fed, tuple | list) else (fed,)), {}

    assumed = example(2, 64) is None
    if image is not None and not assumed and "image" not in sized:
        raise InvalidValueError(
            f"{reference} takes no argument `image`; give it one, or leave out the image size"
        )
    side = image or _SIDE
    return Source(
        name=_name(target, function),
        reference=spell(reference, options),
        build=build,
        inputs=inputs,
        seq=512 if "seq" in sized and "seq" not in options else 0,
        notes=(f"input: images of 3×{side}×{side} are assumed",) if assumed else (),
        advice=(
            f"its input is assumed to be images of 3×{side}×{side}; to give another, let "
            f"{function if not inspect.isclass(make) else 'a function'} return "
            "(module, example_inputs)"
            if assumed
            else ""
        ),
    )


def _name(target: str, function: str) -> str:
    if function != "build":
        return function
    return Path(target).stem if target.endswith(".py") else target.rpartition(".")[2]


def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):
        return {}


def _check_options(
    reference: str, takes: Mapping[str, inspect.Parameter], options: Options, image: int | None
) -> None:
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in takes.values())
    named = [n for n, p in takes.items() if p.kind is not inspect.Parameter.VAR_POSITIONAL]
    for option in options:
        if option not in named and not anything:
            hint = f"(it takes: {', '.join(named)})" if named else "it takes no arguments"
            raise UnknownNameError(f"argument of {reference}", option, named, hint)
    if image is not None and "image" in options:
        raise InvalidValueError(f"{reference} is given its image size twice; leave out one")


def _without_weights(call: Callable[[], Any], reference: str, valued: bool = False) -> Any:
    """Call a builder for its example inputs, whatever mode is active: first without memory.

    Some builders compute with values, such as a schedule of drop rates: they get real tensors.
    With `valued`, so that the inputs have values, all tensors but the module's weights are real.
    """
    with unset_fake_temporarily(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _unweighted() if valued else torch.device("meta"):
                return call()
        except UsageError:
            raise
        except Exception:
            try:
                with torch.device("cpu"):
                    return call()
            except UsageError:
                raise
            except Exception as error:
                raise IngestError(explain(reference, error, "building it")) from error


@contextlib.contextmanager
def _unweighted() -> Iterator[None]:
    """Let a module's parameters give up their memory as soon as they are its own."""
    original = torch.nn.Module.register_parameter

    def register(module: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        if param is not None and not is_lazy(param):
            empty = torch.empty_like(param, device="meta")
            param = torch.nn.Parameter(empty, requires_grad=param.requires_grad)
        original(module, name, param)

    torch.nn.Module.register_parameter = register
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.nn.Module.register_parameter = original


def _has_whole_numbers(example: Any) -> bool:
    tensors = (t for t in tree_flatten(example)[0] if isinstance(t, torch.Tensor))
    return any(not (t.is_floating_point() or t.is_complex()) for t in tensors)


def _fresh(example: Any, batch: int | None) -> Any:
    """Return tensors like the example's, with the batch in place of its own.

    The example's batch is the leading length of its first tensor; a tensor that starts with
    another length, such as a mask that all samples share, is left as it is. Values are kept where
    the example has some, samples being repeated; otherwise they are zeros.
    """
    tensors = [t for t in tree_flatten(example)[0] if isinstance(t, torch.Tensor) and t.dim()]
    own = tensors[0].shape[0] if tensors else 0
    fake = isinstance(torch.zeros(0), FakeTensor)

    def fresh(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        shape = list(value.shape)
        if batch is not None and shape and shape[0] == own:
            shape[0] = batch
        if fake or value.device.type == "meta":
            return torch.zeros(shape, dtype=value.dtype)
        if shape == list(value.shape):
            return value.clone()
        rows = torch.arange(shape[0], device=value.device) % max(own, 1)
        return value[rows]

    return tree_map(fresh, example)


def load_function(target: str, function: str) -> Callable[..., Any]:
    """Import a file or module and return one of its functions."""
    reference = f"{target}:{function}"
    try:
        with on_path(target), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = _load_file(Path(target)) if target.endswith(".py") else _import(target)
    except InputFileError:
        raise
    except ModuleNotFoundError as error:
        if error.name and f"{target}.".startswith(f"{error.name}."):
            raise IngestError(
                f"{reference}: there is no module {error.name!r} here; "
                "check the name, or run from its folder"
            ) from error
        raise IngestError(explain(reference, error, "loading it")) from error
    except (Exception, SystemExit) as error:
        raise IngestError(explain(reference, error, "loading it")) from error
    found = getattr(module, function, None)
    if found is None:
        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        few = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        hint = f"(it has {few})" if names else "it defines none"
        raise UnknownNameError(f"function in {target}", function, names, hint)
    if not callable(found):
        raise IngestError(f"{reference} is of type {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


@contextlib.contextmanager
def on_path(target: str) -> Iterator[None]:
    """Let a user's code import its neighbours: those of its file, or of the current folder."""
    folder = str(Path(target).resolve().parent if target.endswith(".py") else Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ValueError as error:
        raise ModuleNotFoundError(str(error), name=name) from None


def _load_file(path: Path) -> ModuleType:
    if path.is_dir():
        raise InputFileError(path, "is a folder, not a file")
    if not path.is_file():
        raise InputFileError(path, "there is no such file")
    inside = _in_package(path)
    if inside is not None:
        return inside
    name = f"traincast_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _in_package(path: Path) -> ModuleType | None:
    """Import a file of a package under its full name, so that its relative imports work."""
    path = path.resolve()
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    if len(parts) == 1:
        return None
    sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(".".join(parts))
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))
    # Another package of that name may have been imported before.
    same = module.__file__ is not None and Path(module.__file__).resolve() == path
    return module if same else None


def call_builder(make: Callable[..., Any], options: Options, reference: str) -> Any:
    """Call what builds a model; an argument that it does not take is the user's mistake."""
    try:
        return make(**options)
    except SystemExit as error:
        raise IngestError(explain(reference, error, "building it")) from error
    except TypeError as error:
        unexpected = "unexpected keyword argument" in str(error)
        if unexpected and any(repr(o) in str(error) for o in options):
            said = str(error).rpartition("()")[2].strip() or str(error)
            raise InvalidValueError(f"{reference} {said}; leave it out behind the `?`") from error
        raise
