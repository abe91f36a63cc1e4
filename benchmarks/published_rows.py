"""Operator timings that others published, as rows of our own benchmark.

Each reader yields `Published` rows of one source. What a reader leaves out, and why, stands next
to it. Times are as published, but for aiconfigurator's (see `BURST`); `published_profiles.py`
takes off what NeuSight's harness adds.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parents[2] / "shared/data/published"
"""Where the tables are in a full checkout."""


class Published(NamedTuple):
    """One timing."""

    source: str
    device: str
    """Catalog name of the device that was measured."""
    case: str
    """What the harness called it: rows of one case share the harness's own overhead."""
    row: dict[str, Any]
    """In the form of `traincast.measure.rows`, with `seconds`."""


BURST = 1.06
"""What a product of aiconfigurator's takes in a long run, over what was published."""
_NEUSIGHT = {
    "Tesla P4": "p4",
    "Tesla T4": "t4",
    "Tesla P100-PCIE-16GB": "p100-pcie",
    "Tesla V100-PCIE-32GB": "v100-pcie",
    "NVIDIA A100-PCIE-40GB": "a100-40gb-pcie",
    "NVIDIA A100 80GB PCIe": "a100-80gb-pcie",
    "NVIDIA L4": "l4",
    "NVIDIA H100 80GB HBM3": "h100",
    "AMD Instinct MI100": "mi100",
    "AMD Instinct MI210": "mi210",
}
_AICONFIGURATOR = {
    "a100_sxm": "a100-80gb",
    "h100_sxm": "h100",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "gb200": "gb200",
    "gb300": "gb300",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
_DEEPBENCH = {
    "NVIDIA Tesla P100": "p100",
    "NVIDIA V100": "v100",
    "NVIDIA T4": "t4",
    "Nvidia Tesla M40": "m40",
    "Nvidia TitanX": "titan-x",
    "Nvidia TitanX Pascal": "titan-x-pascal",
    "NVIDIA GTX TitanXp": "titan-xp",
    "NVIDIA GTX 1080 Ti": "gtx-1080-ti",
}
_UNARY = {"relu": "relu", "gelu": "gelu", "tanh": "tanh", "powu": "pow", "addu": "add_scalar",
          "mulu": "mul_scalar", "add": "add", "mul": "mul", "div": "div"}  # fmt: skip
_ROWWISE = {"softmax": "softmax", "ln": "layer_norm"}


def read(folder: Path, name: str) -> list[dict[str, str]]:
    """Return the rows of a table."""
    with gzip.open(folder / f"{name}.csv.gz", "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def published(folder: Path) -> Iterator[Published]:
    """Yield every row that we can use."""
    yield from _neusight_gemm(folder)
    yield from _neusight_vector(folder)
    yield from _neusight_conv(folder)
    yield from _aiconfigurator(folder)
    yield from _simumax(folder)
    yield from _ett(folder)
    yield from _deepbench_gemm(folder)
    yield from _deepbench_conv(folder)


def product(form: str, dtype: str, rows: int, columns: int, depth: int) -> dict[str, Any]:
    """Return the row of a product of rows × columns × depth, as the pass that it belongs to.

    The data gradient's depth is the layer's width, the weight gradient's the number of tokens.
    """
    m, n, k = {
        "forward": (rows, columns, depth),
        "data": (rows, depth, columns),
        "weight": (depth, rows, columns),
    }[form]
    return {"family": "gemm", "form": form, "dtype": dtype, "m": m, "n": n, "k": k, "batch": 1}


def _neusight_gemm(folder: Path) -> Iterator[Published]:
    """Yield fp32 products without TF32.

    Where the shapes of real networks (split test) were run, those of the random draw are left out:
    on the P4 the two splits ran other kernels. The products include those of backward
    passes, all run as linear layers.
    """
    rows = read(folder, "ops_neusight_gemm")
    real = {(r["device"], r["op"]) for r in rows if r["split"] == "test"}
    few = {("Tesla P4", "bmm"), ("Tesla V100-PCIE-32GB", "bmm")}
    for r in rows:
        pair = (r["device"], r["op"])
        if pair in real and pair not in few and r["split"] != "test":
            continue
        b, m, n, k = (int(r[x]) for x in "BMNK")
        if r["op"] == "linear":
            row = product("forward", "fp32", m, n, k)
        else:
            row = {"family": "gemm", "form": "batched", "dtype": "fp32", "m": m, "n": n, "k": k,
                   "batch": b}  # fmt: skip
        row["seconds"] = float(r["time_ms"]) * 1e-3
        yield Published("neusight", _NEUSIGHT[r["device"]], r["op"], row)


def _neusight_vector(folder: Path) -> Iterator[Published]:
    """Yield elementwise and rowwise ops; a power of two tensors is no op of networks."""
    for r in read(folder, "ops_neusight_elementwise"):
        op = _UNARY.get(r["op"]) or _ROWWISE.get(r["op"])
        if op is None:
            continue
        row = {"family": "row" if r["op"] in _ROWWISE else "stream", "op": op, "dtype": "fp32",
               "rows": int(r["B"]), "columns": int(r["H"]),
               "seconds": float(r["time_ms"]) * 1e-3}  # fmt: skip
        yield Published("neusight", _NEUSIGHT[r["device"]], r["op"], row)


def _neusight_conv(folder: Path) -> Iterator[Published]:
    for r in read(folder, "ops_neusight_conv_fwd"):
        row = _conv("forward", "fp32", r["B"], r["C"], r["K"], r["HW"], r["ksize"], r["stride"])
        row |= {"padding": int(r["pad"]), "seconds": float(r["time_ms"]) * 1e-3}
        yield Published("neusight", _NEUSIGHT[r["device"]], "conv", row)


def _conv(form: str, dtype: str, *numbers: str) -> dict[str, Any]:
    names = ("n", "cin", "cout", "size", "kernel", "stride")
    sizes = dict(zip(names, map(int, numbers), strict=True))
    return {"family": "conv", "form": form, "dtype": dtype, "groups": 1, "layout": "nchw"} | sizes


def _aiconfigurator(folder: Path) -> Iterator[Published]:
    """Yield bf16 products of linear layers, timed in short bursts with what they read in caches.

    The H200's rows are a check: its own profile says 1.06 times as long in the median for those
    from 20 µs to 100 ms (1.15 for shorter ones), so all devices' times are taken times `BURST`.
    """
    for r in read(folder, "ops_aiconfigurator_gemm_bf16"):
        if r["system"] in _AICONFIGURATOR:
            row = product("forward", "bf16", *(int(r[x]) for x in "MNK"))
            row["seconds"] = BURST * float(r["latency_ms"]) * 1e-3
            yield Published("aiconfigurator", _AICONFIGURATOR[r["system"]], "gemm", row)


def _simumax(folder: Path) -> Iterator[Published]:
    """Yield bf16 products in the layouts of all three passes.

    TN is forward, NN the data and NT the weight gradient; m × n is what a product writes. Left
    out: attention, whose counting of FLOPs is not stated; grouped products of experts; the B200,
    where the same products take 1.3 times as long as in the newer table of aiconfigurator.
    """
    forms = {"TN": "forward", "NN": "data", "NT": "weight"}
    for r in read(folder, "ops_simumax_gemm_attn_efficiency"):
        if r["op"] != "matmul" or not r["time_us"] or r["device"] != "A100 PCIe 80GB":
            continue
        key = dict(part.split("=") for part in r["key"].split(", "))
        if key["b"] != "1":
            continue
        row = product(forms[key["layout"]], "bf16", *(int(key[x]) for x in "mnk"))
        row["seconds"] = float(r["time_us"]) * 1e-6
        yield Published("simumax", "a100-80gb-pcie", key["layout"], row)


def _ett(folder: Path) -> Iterator[Published]:
    """Yield fp16 operators of transformers, kept as bf16, which runs at the same rates.

    Left out: products of linear layers, which reach up to 0.98 of the peak backward (presumably
    on data of low entropy), as training does not; flash attention on the GH200, whose backward
    beats the peak; compositions of several kernels (RoPE, masks, RMS norm); optimizers.
    """
    devices = {"A": "a100-80gb", "G": "gh200"}
    for r in read(folder, "ops_ett_transformer_fp16"):
        if not r["fwd_us"] or r["op"] not in _ETT:
            continue
        device = devices[r["device"][0]]
        for form, row in _ETT[r["op"]]({k: int(float(r[k] or 1)) for k in _ETT_DIMS}):
            if row["family"] == "attention":
                if device == "gh200":
                    continue
                us = float(r["fwd_us"]) + (float(r["bwd_us"]) if form == "bwd" else 0.0)
            else:
                us = float(r[f"{form}_us"])
            row |= {"dtype": "bf16", "seconds": us * 1e-6}
            yield Published("ett", device, f"{r['op']}.{form}", row)


_ETT_DIMS = ("mp", "b", "h", "l", "dim")
Forms = Iterator[tuple[str, dict[str, Any]]]


def _ett_vector(family: str, op: str, rows: str, columns: str) -> Any:
    def make(d: dict[str, int]) -> Forms:
        lengths = {"tokens": d["l"] * d["b"], "dim": d["dim"], "ffn": 4 * d["dim"] // d["mp"],
                   "queries": d["b"] * d["h"] // d["mp"] * d["l"], "l": d["l"]}  # fmt: skip
        for form in ("fwd", "bwd"):
            if op == "add" and form == "bwd":
                continue
            yield form, {"family": family, "op": op if form == "fwd" else f"{op}_backward",
                         "rows": lengths[rows], "columns": lengths[columns]}  # fmt: skip

    return make


def _ett_scores(d: dict[str, int]) -> Forms:
    yield "fwd", _batched(d, d["l"], d["l"], d["dim"] // d["h"])


def _ett_values(d: dict[str, int]) -> Forms:
    yield "fwd", _batched(d, d["l"], d["dim"] // d["h"], d["l"])


def _batched(d: dict[str, int], m: int, n: int, k: int) -> dict[str, Any]:
    batch = d["b"] * d["h"] // d["mp"]
    return {"family": "gemm", "form": "batched", "m": m, "n": n, "k": k, "batch": batch}


def _ett_attention(d: dict[str, int]) -> Forms:
    heads = d["h"] // d["mp"]
    for form, name in (("fwd", "forward"), ("bwd", "both")):
        yield form, {"family": "attention", "form": name, "b": d["b"], "heads": heads, "kv": heads,
                     "seq": d["l"], "d": d["dim"] // d["h"], "causal": 0}  # fmt: skip


_ETT = {
    "gelu": _ett_vector("stream", "gelu", "tokens", "ffn"),
    "res_add": _ett_vector("stream", "add", "tokens", "dim"),
    "layernorm": _ett_vector("row", "layer_norm", "tokens", "dim"),
    "softmax": _ett_vector("row", "softmax", "queries", "l"),
    "baddbmm": _ett_scores,
    "bmm": _ett_values,
    "flash_atten": _ett_attention,
}


def _type(precision: str) -> str | None:
    """Return our name of DeepBench's precision; half is on matrix units, but for the P100."""
    if precision == "Float":
        return "fp32"
    return "fp16" if precision.startswith("16 bit inputs") else None


def _deepbench_gemm(folder: Path) -> Iterator[Published]:
    """Yield products of recurrent layers for training; column-major, so their M is our columns."""
    forms = {("T", "N"): "forward", ("N", "N"): "data", ("N", "T"): "weight"}
    for r in read(folder, "ops_deepbench_gemm"):
        dtype, form = _type(r["precision"]), forms.get((r["transA"], r["transB"]))
        if r["kind"] != "train" or r["device"] not in _DEEPBENCH or not (dtype and form):
            continue
        row = product(form, dtype, int(r["N"]), int(r["M"]), int(r["K"]))
        row["seconds"] = float(r["time_ms"]) * 1e-3
        yield Published("deepbench", _DEEPBENCH[r["device"]], f"gemm.{form}", row)


def _deepbench_conv(folder: Path) -> Iterator[Published]:
    """Yield convolutions over square images with square windows, in all three passes."""
    passes = {"forward": "fwd_ms", "data": "bwd_data_ms", "weight": "bwd_weight_ms"}
    for r in read(folder, "ops_deepbench_conv"):
        dtype = _type(r["precision"])
        square = r["W"] == r["H"] and r["S_w"] == r["R_h"] and r["pad_w"] == r["pad_h"]
        if r["device"] not in _DEEPBENCH or not dtype or not square:
            continue
        for form, column in passes.items():
            if r[column]:
                row = _conv(form, dtype, *(r[x] for x in ("N", "C", "K", "W", "S_w", "stride_w")))
                row |= {"padding": int(r["pad_w"]), "seconds": float(r[column]) * 1e-3}
                yield Published("deepbench", _DEEPBENCH[r["device"]], f"conv.{form}", row)
