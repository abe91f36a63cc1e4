"""Which kind of op each aten op is: tables for the plain ones, a function for each other form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from traincast.graph import Attr
from traincast.graph.kinds.pointwise import NOT_DIFFERENTIABLE, RULES
from traincast.graph.kinds.special import SPECIAL
from traincast.ingest.pytorch.recorder import Recorder, is_tensor

Tensors = list[torch.Tensor]

VIEWS = {
    "view": "reshape", "_unsafe_view": "reshape", "reshape": "reshape", "t": "permute",
    "transpose": "permute", "permute": "permute", "expand": "expand", "slice": "slice",
    "select": "select", "unsqueeze": "reshape", "squeeze": "reshape", "split": "split",
    "split_with_sizes": "split", "unbind": "unbind", "detach": "detach", "alias": "alias",
    "as_strided": "as_strided", "diagonal": "diagonal", "unfold": "unfold",
    "view_as_real": "reshape", "view_as_complex": "reshape", "_reshape_alias": "reshape",
    "as_strided_": "reshape", "_conj": "alias", "real": "slice", "imag": "slice",
    "lift_fresh": "alias", "squeeze_": "reshape", "unsqueeze_": "reshape", "detach_": "detach",
    "t_": "permute", "transpose_": "permute", "_neg_view": "alias", "unsafe_split": "split",
    "unsafe_split_with_sizes": "split",
}  # fmt: skip
COPIES = {
    "clone": "clone", "constant_pad_nd": "pad", "roll": "roll", "flip": "flip",
    "repeat": "repeat", "cumsum": "cumsum", "im2col": "im2col",
    "col2im": "col2im", "copy_": "copy_", "copy": "copy_", "slice_scatter": "slice_scatter",
    "reflection_pad1d": "reflection_pad1d", "reflection_pad2d": "reflection_pad2d",
    "replication_pad1d": "replication_pad1d", "replication_pad3d": "replication_pad3d",
    "reflection_pad3d": "reflection_pad3d", "diag_embed": "diag_embed", "block_diag": "block_diag",
    "index_fill": "index_fill", "index_fill_": "index_fill",
    "replication_pad2d": "replication_pad2d", "contiguous": "clone", "tile": "repeat",
    "pixel_shuffle": "pixel_shuffle", "pixel_unshuffle": "pixel_unshuffle",
    "repeat_interleave": "repeat", "select_scatter": "select_scatter", "rot90": "flip",
    "channel_shuffle": "clone", "native_channel_shuffle": "clone",
}  # fmt: skip
POINTWISE = {
    "clamp_min": "clamp", "clamp_max": "clamp", "__and__": "bitwise_and", "__or__": "bitwise_or",
    "__xor__": "bitwise_xor", "maximum": "maximum", "minimum": "minimum", "exp2": "exp",
    "expm1": "exp", "log2": "log", "log10": "log", "relu6": "hardtanh", "selu": "elu",
    "celu": "elu", "_prelu_kernel": "prelu", "logical_not": "logical_not", "fmax": "maximum",
    "__rshift__": "shift", "__lshift__": "shift", "bitwise_left_shift": "shift",
    "bitwise_right_shift": "shift", "polar": "cos", "atan": "sin", "atan2": "div",
    "erfinv": "erf", "log_sigmoid_forward": "log_sigmoid", "true_divide": "div",
    "sinh": "exp", "cosh": "exp", "asin": "sin", "acos": "sin", "tan": "sin", "erfc": "erf",
    "nan_to_num": "clamp", "hypot": "sqrt", "logaddexp": "log", "complex": "add", "deg2rad": "mul",
    "special_expit": "sigmoid", "special_log1p": "log1p", "frac": "sub",
}  # fmt: skip
REDUCTIONS = {
    "sum": "sum", "mean": "mean", "amax": "amax", "amin": "amin", "var": "var", "std": "std",
    "var_mean": "var_mean", "std_mean": "std", "norm": "norm", "linalg_vector_norm": "norm",
    "prod": "prod", "logsumexp": "logsumexp", "argmax": "argmax", "argmin": "argmin",
    "any": "any", "all": "all", "histc": "histc", "bincount": "bincount", "max": "max",
    "min": "min", "nll_loss_forward": "nll_loss_forward",
    "nll_loss2d_forward": "nll_loss2d_forward",
    "mse_loss": "mse_loss", "smooth_l1_loss": "smooth_l1_loss", "huber_loss": "huber_loss",
    "binary_cross_entropy": "binary_cross_entropy", "median": "max", "mode": "max",
    "binary_cross_entropy_with_logits": "binary_cross_entropy_with_logits",
    "multi_margin_loss": "multi_margin_loss", "soft_margin_loss": "soft_margin_loss",
    "multilabel_margin_loss_forward": "multilabel_margin_loss",
    "count_nonzero": "all", "trace": "sum", "aminmax": "amax",
}  # fmt: skip
GATHERS = {
    "index": "index", "gather": "gather", "index_select": "index_select", "scatter": "scatter",
    "scatter_add": "scatter_add", "index_add": "index_add", "index_put": "index_put",
    "index_put_": "index_put", "scatter_": "scatter", "scatter_add_": "scatter_add",
    "index_add_": "index_add", "take": "gather",
    "index_copy": "index_put", "_unsafe_index": "index", "index_copy_": "index_put",
    "masked_scatter": "index_put", "masked_select": "index", "take_along_dim": "gather",
    "_unsafe_index_put": "index_put",
}  # fmt: skip
FILLS = frozenset(
    {
        "arange", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros",
        "new_ones", "new_full", "rand", "randn", "rand_like", "randn_like", "randint", "linspace",
        "eye", "normal", "uniform", "randperm", "tril_indices", "triu_indices", "logspace",
        "fill_", "zero_", "fill", "bernoulli_", "normal_", "uniform_", "exponential_", "random_",
        "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided",
        "_efficientzerotensor", "hann_window", "hamming_window", "blackman_window",
        "bartlett_window", "kaiser_window",
    }
)  # fmt: skip
CONSTANTS = frozenset(
    {"scalar_tensor", "lift_fresh_copy", "lift", "_assert_async", "_assert_scalar"}
)
SORTS = frozenset({"topk", "sort", "argsort", "kthvalue", "msort", "multinomial", "_unique2"})


def record(rec: Recorder, func: Any, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    """Add to the trace what one aten call does."""
    name = func.overloadpacket.__name__
    if not outs or name in CONSTANTS or func.namespace not in ("aten", "torchvision", "timm"):
        if func.namespace not in ("aten", "prim", "prims") and outs:
            _unknown(rec, str(func), args, kwargs, outs)
        return
    form = FORMS.get(name)
    if form is not None:
        form(rec, name, args, kwargs, outs)
        return
    ins = tensors_in(args, kwargs)
    base = name.removesuffix("_")
    fn = POINTWISE.get(base, base)
    if name in VIEWS:
        attrs: dict[str, Attr] = {"fn": VIEWS[name]}
        order = _order(name, args)
        if order:
            attrs["order"] = order
        rec.add("view", ins[:1], outs, attrs)
    elif name in COPIES:
        rec.add("copy", _written_first(name, ins), outs, {"fn": COPIES[name]})
    elif name in REDUCTIONS and not (base in ("max", "min") and len(ins) == 2):
        rec.add("reduce", ins[:2], outs, {"fn": REDUCTIONS[name]})
    elif name in GATHERS:
        placed: dict[str, Attr] = {"inplace": True} if name.endswith("_") else {}
        rec.add("gather", ins, outs[:1], {"fn": GATHERS[name], **placed})
    elif name in FILLS:
        rec.add("fill", [], outs, {"fn": name.removesuffix("_")})
    elif name in SORTS:
        rec.add("sort", ins[:1], outs, {"fn": name})
    elif name.startswith(("upsample_", "_upsample", "grid_sampler")):
        rec.add("interpolate", ins, outs, {"fn": name})
    elif name in SPECIAL:
        rec.add("unknown", ins, outs, {"fn": name})
    elif fn in RULES or fn in NOT_DIFFERENTIABLE or _is_pointwise(func, ins, outs):
        _pointwise(rec, name, fn, ins, outs)
    else:
        _unknown(rec, f"aten.{name}", args, kwargs, outs)


def _is_pointwise(func: Any, ins: Tensors, outs: Tensors) -> bool:
    """Tell whether PyTorch says that an op without a rule works element by element.

    So does the gradient of an activation, where a network asks for one (a gradient penalty).
    """
    gradient = func.overloadpacket.__name__.endswith("_backward")
    if len(outs) != 1 or not ins or not (gradient or torch.Tag.pointwise in func.tags):
        return False
    try:
        return bool(torch.broadcast_shapes(*(t.shape for t in ins)) == outs[0].shape)
    except RuntimeError:
        return False


def tensors_in(args: Any, kwargs: dict[str, Any]) -> Tensors:
    """Return the tensors among the arguments, in order."""
    return [t for t in tree_flatten((args, kwargs))[0] if is_tensor(t)]


def _unknown(rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    rec.add("unknown", tensors_in(args, kwargs), outs, {"fn": name}, name.rpartition(".")[2])


def _written_first(name: str, ins: Tensors) -> Tensors:
    # copy_(to, from): what is read is the second, the first is only where it goes
    return [ins[1]] if name in ("copy_", "copy") and len(ins) > 1 else ins[:1]


def _order(name: str, args: Any) -> tuple[int, ...]:
    rank = args[0].dim()
    if name == "permute":
        return tuple(int(i) % rank for i in args[1])
    if name in ("t", "transpose") and rank >= 2:
        a, b = (0, 1) if name == "t" else (args[1] % rank, args[2] % rank)
        order = list(range(rank))
        order[a], order[b] = b, a
        return tuple(order)
    return ()


def _pointwise(rec: Recorder, name: str, fn: str, ins: Tensors, outs: Tensors) -> None:
    inplace = name.endswith("_") and not name.startswith("_") and outs[0] is ins[0]
    if len(ins) == 1 and fn in ("mul", "div"):
        fn += "_scalar"
    inputs: list[torch.Tensor | str] = list(ins)
    if inplace and RULES.get(fn) and RULES[fn].saved == "i":
        # Autograd has just cloned the input, which backward needs, and keeps the clone.
        last = rec.last()
        first = rec.name_of(ins[0])
        if last and last.kind == "copy" and last.inputs == (first,):
            inputs, inplace = [last.outputs[0], *ins[1:]], False
    attrs: dict[str, Attr] = {"fn": fn}
    if inplace:
        attrs["inplace"] = True
    rec.add("pointwise", inputs, outs[:1], attrs)


def _cast(rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    if not is_tensor(args[0]):
        return  # a number, as functions that are mapped see it
    same = outs[0].dtype == args[0].dtype
    rec.add("copy", [args[0]], outs, {"fn": "clone" if same else "cast"})


def _product(rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    """Record mm, addmm, bmm, baddbmm: a linear layer if the right side is a weight."""
    tensors = tensors_in(args, kwargs)
    bias = tensors.pop(0) if "add" in name else None
    a, b = tensors[:2]
    extra = [bias] if bias is not None else []
    base, steps = rec.base_of(b)
    if rec.role_of(base) == "parameter" and b.dim() == 2 and set(steps) <= {"permute"}:
        turned = len(steps) % 2 == 0  # a weight is [out, in]; used as it is, [in, out]
        attrs: dict[str, Attr] = {"transposed": True} if turned else {}
        rec.add("linear", [a, base, *extra], outs, attrs, "linear")
    else:
        rec.add("matmul", [a, b, *extra], outs, {}, name)


def _dot(rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    rec.add("reduce", list(args[:2]), outs, {"fn": "dot"})


def _mv(rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    first = [*args[1:3], args[0]] if name == "addmv" else list(args[:2])
    rec.add("unknown", first, outs, {"fn": "mv"})


def _scattered(rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    attrs: dict[str, Attr] = {"fn": "scatter_reduce", "reduce": str(args[4])}
    rec.add("unknown", [args[0], *args[2:4]], outs, attrs, "scatter_reduce")


def _fft(rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    lengths = [max(args[0].shape[d], outs[0].shape[d]) for d in args[1]]
    attrs: dict[str, Attr] = {"fn": name, "axes": len(lengths), "points": math.prod(lengths)}
    if args[2]:
        attrs["scaled"] = True
    rec.add("unknown", [args[0]], outs, attrs, "fft")


def _grouped(rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    weight, steps = rec.base_of(args[1])
    attrs: dict[str, Attr] = {"transposed": True} if "permute" in steps else {}
    rec.add("grouped_matmul", [args[0], weight], outs, attrs)


def _conv(rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = args[:9]
    rank = weight.dim() - 2

    def each(value: Sequence[int]) -> tuple[int, ...]:
        return tuple(int(v) for v in value) * (rank if len(value) == 1 else 1)

    attrs: dict[str, Attr] = {
        "stride": each(stride),
        "padding": each(padding),
        "dilation": each(dilation),
        "groups": int(groups),
    }
    if transposed:
        attrs |= {"transposed": True, "output_padding": each(output_padding)}
    rec.add("conv", [x, weight, *([bias] if bias is not None else [])], outs, attrs)


def _conv_backward(
    rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors
) -> None:
    attrs: dict[str, Attr] = {"fn": name, "groups": int(args[9]), "transposed": bool(args[7])}
    attrs["wanted"] = tuple(int(v) for v in args[10])
    rec.add("unknown", list(args[:3]), outs, attrs, name)


def _batch_norm(rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    rec.add("batch_norm", [t for t in args[:3] if is_tensor(t)], outs[:1])


def _layer_norm(rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    affine = [t for t in args[2:4] if is_tensor(t)]
    kind = "rms_norm" if "rms" in name else "layer_norm"
    rec.add(kind, [args[0], *affine], outs[:1], {"axes": len(args[1])})


def _group_norm(rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    affine = [t for t in args[1:3] if is_tensor(t)]
    rec.add("group_norm", [args[0], *affine], outs[:1], {"groups": int(args[6])})


def _embedding(rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    rec.add("embedding", [t for t in args[:2] if is_tensor(t)], outs[:1])


def _pool(rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    x, y = args[0], outs[0]
    if "adaptive" in name:
        rank = len(args[1])
        kernel = tuple(-(-int(x.shape[i - rank]) // int(y.shape[i - rank])) for i in range(rank))
    else:
        kernel = tuple(int(k) for k in args[1])
    op = "max" if "max" in name else "avg"
    rec.add("pool", [x], outs, {"op": op, "kernel": kernel, "aten": name}, f"{op}_pool")


def _softmax(rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    attrs: dict[str, Attr] = {"axis": int(args[1])}
    if "log" in name:
        attrs["log"] = True
    rec.add("softmax", [args[0]], outs[:1], attrs)


def _concat(rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    axis = int(args[1]) if len(args) > 1 else int(kwargs.get("dim", 0))
    if name == "stack":
        rec.add("copy", list(args[0]), outs, {"fn": "stack"})
    else:
        ins = [t for t in args[0] if t.dim() == outs[0].dim()]
        rec.add("concat", ins, outs, {"axis": axis})


def _sdpa(rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors) -> None:
    causal = bool(kwargs.get("is_causal", args[4] if len(args) > 4 else False))
    mask = kwargs.get("attn_mask")
    rec.add(
        "attention",
        [*args[:3], *([mask] if is_tensor(mask) else [])],
        outs[:1],
        {"causal": causal},
    )


def _native_dropout(
    rec: Recorder, name: str, args: Any, kwargs: dict[str, Any], outs: Tensors
) -> None:
    rec.add("dropout", [args[0]], outs[:1], {"p": float(args[1])})


Form = Callable[[Recorder, str, Any, dict[str, Any], Tensors], None]
FORMS: dict[str, Form] = {
    "_to_copy": _cast,
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "addmm_", "baddbmm_"), _product),
    **dict.fromkeys(("dot", "vdot"), _dot),
    **dict.fromkeys(("mv", "addmv"), _mv),
    **dict.fromkeys(("scatter_reduce", "scatter_reduce_"), _scattered),
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), _fft),
    "_grouped_mm": _grouped,
    **dict.fromkeys(("convolution", "_convolution"), _conv),
    "convolution_backward": _conv_backward,
    **dict.fromkeys(
        (
            "native_batch_norm",
            "_native_batch_norm_legit",
            "cudnn_batch_norm",
            "_native_batch_norm_legit_functional",
            "_batch_norm_with_update",
            "_native_batch_norm_legit_no_training",
            "batch_norm",
        ),
        _batch_norm,
    ),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm", "rms_norm"), _layer_norm),
    "native_group_norm": _group_norm,
    **dict.fromkeys(("embedding", "_embedding_bag", "_embedding_bag_forward_only"), _embedding),
    **dict.fromkeys(
        (
            "max_pool2d_with_indices",
            "max_pool3d_with_indices",
            "max_pool2d",
            "avg_pool1d",
            "avg_pool2d",
            "avg_pool3d",
            "_adaptive_avg_pool2d",
            "_adaptive_avg_pool3d",
            "adaptive_avg_pool1d",
            "adaptive_max_pool2d",
            "adaptive_max_pool3d",
            "adaptive_avg_pool2d",
            "fractional_max_pool2d",
            "fractional_max_pool3d",
        ),
        _pool,
    ),
    **dict.fromkeys(("_softmax", "_log_softmax", "_safe_softmax"), _softmax),
    **dict.fromkeys(("cat", "concat", "stack"), _concat),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
        ),
        _sdpa,
    ),
    "native_dropout": _native_dropout,
}
