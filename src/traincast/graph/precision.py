"""Training precisions: which type parameters have, and which type each op computes in.

`fp32`, `tf32`: everything in float32, matrix products on float32 or TF32 units.
`bf16`, `fp16`: parameters, gradients and optimizer state in that type.
`amp_bf16`, `amp_fp16`: float32 parameters under PyTorch's autocast.
`fp8`: amp_bf16 with the products of linear layers in 8 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from traincast.errors import UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """A way to train."""

    name: str
    """As users write it."""
    parameters: str
    """Element type of parameters, gradients and optimizer state."""
    compute: str
    """Element type of matrix products."""
    peak: str
    """Which of a device's peaks applies to matrix products."""

    @property
    def autocast(self) -> bool:
        """Whether ops choose their own type."""
        return self.parameters != self.compute


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision(name="fp32", parameters="float32", compute="float32", peak="fp32"),
        Precision(name="tf32", parameters="float32", compute="float32", peak="tf32"),
        Precision(name="bf16", parameters="bfloat16", compute="bfloat16", peak="bf16"),
        Precision(name="fp16", parameters="float16", compute="float16", peak="fp16"),
        Precision(name="amp_bf16", parameters="float32", compute="bfloat16", peak="bf16"),
        Precision(name="amp_fp16", parameters="float32", compute="float16", peak="fp16"),
        Precision(name="fp8", parameters="float32", compute="bfloat16", peak="fp8"),
    )
}


def precision_named(name: str) -> Precision:
    """Return the precision of a name; hyphens and case do not matter."""
    found = PRECISIONS.get(name.lower().replace("-", "_"))
    if found is None:
        raise UnknownNameError("precision", name, PRECISIONS, f"(known: {', '.join(PRECISIONS)})")
    return found


# PyTorch's autocast op reference (docs "Automatic Mixed Precision", CUDA op-specific behaviour).
AUTOCAST_LOW = frozenset({"linear", "matmul", "conv", "attention", "rnn"})
AUTOCAST_HIGH = frozenset({"softmax", "cross_entropy", "layer_norm", "group_norm", "rms_norm"})
AUTOCAST_HIGH_FUNCTIONS = frozenset(
    {
        "pow", "square", "exp", "log", "log1p", "rsqrt", "reciprocal", "softplus", "cumsum",
        "sum", "norm", "prod", "mse_loss", "smooth_l1_loss", "nll_loss_forward",
        "binary_cross_entropy_with_logits", "erf",
    }
)  # fmt: skip
