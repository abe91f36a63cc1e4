"""A model as a JSON file: versioned, whole, and checked when it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from traincast.errors import InputFileError, TraincastError
from traincast.fit.constants import Form
from traincast.fit.expression import ExpressionForm
from traincast.fit.factors import Factor
from traincast.fit.generic import GenericForm
from traincast.fit.model import Model

FORMAT = "traincast-fit"
VERSION = 1


def model_dict(model: Model) -> dict[str, Any]:
    """Return everything that a prediction needs, as plain data."""
    return {
        "form": _form_dict(model.form),
        "time": model.time,
        "unit": model.unit,
        "factors": [
            {"name": f.name, "role": f.role, "reference": f.reference, "low": f.low,
             "high": f.high, "levels": list(f.levels)}
            for f in model.factors
        ],
        "constants": [
            {"kind": c.kind, "name": c.name, "value": float(v), "locked": bool(k)}
            for c, v, k in zip(model.form.constants, model.x, model.locked, strict=True)
        ],
        "draws": [[float(f"{v:.7g}") for v in row] for row in model.draws],
        "spread": list(model.spread),
        "reference": dict(model.reference),
    }  # fmt: skip


def _form_dict(form: Form) -> dict[str, Any]:
    if isinstance(form, ExpressionForm):
        return {"kind": "expression", "source": form.source, "factors": list(form.factors),
                "unit": form.unit, "bounds": {n: list(b) for n, b in form.bounds.items()}
                }  # fmt: skip
    assert isinstance(form, GenericForm)
    return {
        "kind": "generic",
        "terms": [list(term) for term in form.terms],
        "levelled": {n: list(levels) for n, levels in form.levelled.items()},
        "categories": {n: list(levels) for n, levels in form.categories.items()},
        "scaling": list(form.scaling),
        "multipliers": {n: list(levels) for n, levels in form.multipliers.items()},
        "base": form.base,
        "communication": form.communication,
        "bounds": {n: list(b) for n, b in form.bounds.items()},
        "fixed": sorted(form.fixed),
    }


def _form(data: dict[str, Any]) -> Form:
    bounds = {n: (float(b[0]), float(b[1])) for n, b in data["bounds"].items()}
    if data["kind"] == "expression":
        return ExpressionForm(source=data["source"], factors=tuple(data["factors"]),
                              unit=float(data["unit"]), bounds=bounds)  # fmt: skip
    return GenericForm(
        terms=tuple(tuple(term) for term in data["terms"]),
        levelled={n: tuple(levels) for n, levels in data["levelled"].items()},
        categories={n: tuple(levels) for n, levels in data["categories"].items()},
        scaling=tuple(data["scaling"]),
        multipliers={n: tuple(levels) for n, levels in data["multipliers"].items()},
        base=bool(data["base"]),
        communication=data["communication"],
        bounds=bounds,
        fixed=frozenset(data["fixed"]),
    )


def saved_text(model: Model, about: dict[str, Any]) -> str:
    """Return the file's text; `about` is what a reader wants to know of the fit."""
    data = {"format": FORMAT, "version": VERSION, **about, "model": model_dict(model)}
    return json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def load_model(path: Path) -> Model:
    """Return a saved model."""
    data = read_saved(path)
    try:
        return _model(data["model"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, TraincastError) as error:
        said = (
            str(error) if isinstance(error, TraincastError) else f"{type(error).__name__} {error}"
        )
        fix = "write it again with `traincast fit … -o FILE`"
        raise InputFileError(path, f"is a damaged model ({said})", fix) from None


def read_saved(path: Path) -> dict[str, Any]:
    """Return the data of a saved model's file; raise where it is none, or of another version."""
    fix = "write one with `traincast fit RUNS.csv -o FILE`"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputFileError(path, "there is no such file", fix) from None
    except IsADirectoryError:
        raise InputFileError(path, "is a folder", "name a file in it") from None
    except (UnicodeDecodeError, ValueError, RecursionError):
        raise InputFileError(path, "is not JSON", fix) from None
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise InputFileError(path, f"cannot be read ({why})", "check its permissions") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputFileError(path, "is not a fitted model", fix)
    version = data.get("version")
    if version != VERSION:
        raise InputFileError(
            path, f"is a fitted model of version {version}; this traincast reads {VERSION}",
            "fit again, or use the traincast that wrote it",
        )  # fmt: skip
    return data


def _model(data: dict[str, Any]) -> Model:
    form = _form(data["form"])
    names = [(c["kind"], c["name"]) for c in data["constants"]]
    if names != [(c.kind, c.name) for c in form.constants]:
        raise ValueError("its constants are not those of its expression")
    factors = tuple(
        Factor(name=f["name"], role=f["role"], reference=float(f["reference"]),
               low=float(f["low"]), high=float(f["high"]), levels=tuple(f["levels"]))
        for f in data["factors"]
    )  # fmt: skip
    x = np.array([float(c["value"]) for c in data["constants"]])
    draws = np.array(data["draws"], float).reshape(-1, len(x))
    if not (np.isfinite(x).all() and np.isfinite(draws).all() and float(data["unit"]) > 0):
        raise ValueError("a constant is not finite")
    return Model(
        form=form, factors=factors, time=str(data["time"]), unit=float(data["unit"]), x=x,
        draws=draws, locked=np.array([bool(c["locked"]) for c in data["constants"]]),
        spread=(float(data["spread"][0]), float(data["spread"][1])),
        reference={n: float(v) for n, v in data["reference"].items()},
    )  # fmt: skip
