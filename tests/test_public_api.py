"""The public API: one sorted list of names, all there, and an import that stays light."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import traincast

HEAVY = ("torch", "torchvision", "timm", "transformers", "onnx", "scipy", "plotly", "sklearn")
SOURCE = Path(traincast.__file__).parent.parent


def test_the_list_is_sorted_and_without_repeats() -> None:
    assert traincast.__all__ == sorted(set(traincast.__all__))


@pytest.mark.parametrize("name", traincast.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(traincast, name) is not None


def test_a_star_import_brings_exactly_these_names() -> None:
    scope: dict[str, object] = {}
    exec("from traincast import *", scope)
    assert set(scope) - {"__builtins__"} == set(traincast.__all__)


def test_dir_lists_the_api() -> None:
    assert dir(traincast) == traincast.__all__


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'traincast' has no attribute 'predcit'"):
        traincast.predcit  # noqa: B018


def test_lazy_names_are_the_objects_of_their_modules() -> None:
    from traincast.errors import TraincastError
    from traincast.graph import Graph
    from traincast.simulate.predict import predict

    assert traincast.predict is predict
    assert traincast.Graph is Graph
    assert traincast.TraincastError is TraincastError


def test_type_checkers_see_every_name() -> None:
    """The block under TYPE_CHECKING and the table of lazy names agree with the list."""
    import ast

    tree = ast.parse(Path(traincast.__file__).read_text(encoding="utf-8"))
    seen = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("traincast")
        for alias in node.names
    }
    assert seen == set(traincast.__all__)


def python(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    where = [str(p) for p in (path, SOURCE) if p is not None]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(where)}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment
    )


def loaded_by(statements: str, path: Path | None = None) -> set[str]:
    """Return the heavy packages that a fresh interpreter has loaded after some statements."""
    found = python("-c", f"{statements}\nimport sys; print(*sys.modules, sep='\\n')", path=path)
    assert found.returncode == 0, found.stderr
    return {line.partition(".")[0] for line in found.stdout.splitlines()} & set(HEAVY)


HELP = """
import io, sys, contextlib
from traincast.cli import main
shown = io.StringIO()
with contextlib.redirect_stdout(shown):
    try:
        status = main(["--help"])
    except SystemExit as stop:
        status = stop.code
assert not status, status
assert "predict" in shown.getvalue()
"""


@pytest.mark.parametrize(
    "statements",
    [
        "import traincast",
        "import traincast; traincast.predict; traincast.Graph; traincast.load_device",
        "import traincast; traincast.predict('resnet18', 'h200', batch=2)",
        HELP,
    ],
    ids=["import", "names", "predict", "help"],
)
def test_nothing_heavy_is_loaded(statements: str) -> None:
    assert loaded_by(statements) == set()


def test_the_test_above_can_fail(tmp_path: Path) -> None:
    """A package named torch that does nothing is found once it is imported."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("nn = None\n", encoding="utf-8")
    assert loaded_by("import traincast; import torch", tmp_path) == {"torch"}
    assert loaded_by("import traincast; from torch import nn", tmp_path) == {"torch"}
    assert loaded_by("import traincast", tmp_path) == set()


def test_importing_the_package_does_not_even_load_numpy() -> None:
    found = python("-c", "import traincast, sys; print('numpy' in sys.modules)")
    assert found.stdout == "False\n"


def test_the_package_runs_as_a_module() -> None:
    found = python("-m", "traincast", "--help")
    assert found.returncode == 0
    assert "predict" in found.stdout
    version = python("-m", "traincast", "--version")
    assert version.stdout.strip() == traincast.__version__


def test_python_m_traincast_help_loads_nothing_heavy() -> None:
    found = python("-X", "importtime", "-m", "traincast", "--help")
    names = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in found.stderr.splitlines()
    }
    assert "traincast" in names
    assert names & set(HEAVY) == set()
