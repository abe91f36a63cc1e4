"""Two networks as the authors' converter makes them of Caffe files, which only `head` can price."""

from __future__ import annotations

from typing import Any

Spec = dict[str, Any]


def conv(parent: str, k: int, out: int, stride: int = 1, padding: str = "SAME") -> Spec:
    return {
        "type": "Convolution",
        "parents": [parent],
        "filter": [k, k, -1, out],
        "strides": [1, stride, stride, 1],
        "padding": padding,
    }


def pool(parent: str, k: int, stride: int) -> Spec:
    return {
        "type": "Pooling",
        "parents": [parent],
        "ksize": [1, k, k, 1],
        "strides": [1, stride, stride, 1],
        "padding": "VALID",
    }


def data(*shape: int) -> Spec:
    return {"type": "Input", "parents": [], "tensor": list(shape)}


def plain(kind: str, *parents: str, **fields: Any) -> Spec:
    return {"type": kind, "parents": list(parents), **fields}


def resnet50() -> Spec:
    layers = {"data": data(1, 224, 224, 3), "conv1": conv("data", 7, 64, 2)}
    layers["pool1"] = pool("conv1", 3, 2)
    last = "pool1"
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=2):
        for i in range(blocks):
            name = f"res{stage}{'abcdef'[i]}"
            stride = 2 if i == 0 and stage > 2 else 1
            shortcut = last
            if i == 0:
                shortcut = f"{name}_branch1"
                layers[shortcut] = conv(last, 1, 4 * width, stride, "VALID")
            layers[f"{name}_branch2a"] = conv(last, 1, width, stride, "VALID")
            layers[f"{name}_branch2b"] = conv(f"{name}_branch2a", 3, width)
            layers[f"{name}_branch2c"] = conv(f"{name}_branch2b", 1, 4 * width, 1, "VALID")
            layers[name] = plain("Elementwise", shortcut, f"{name}_branch2c")
            last = name
    layers["pool5"] = pool(last, 7, 1)
    layers["fc1000"] = plain("InnerProduct", "pool5", num_outputs=1000)
    layers["prob"] = plain("Softmax", "fc1000")
    return {"name": "resnet50", "layers": layers}


def densenet() -> Spec:
    """Forty layers deep, growing by 12 channels, for 32×32 images."""
    layers = {"data": data(1, 32, 32, 3), "first": conv("data", 3, 16)}
    last, channels = "first", 16
    for block in (1, 2, 3):
        for unit in range(12):
            name = f"b{block}u{unit}"
            layers[f"{name}_bn"] = plain("BatchNorm", last)
            layers[f"{name}_conv"] = conv(f"{name}_bn", 3, 12)
            layers[f"{name}_drop"] = plain("Dropout", f"{name}_conv", dropout_keep_prob=0.2)
            layers[f"{name}_cat"] = plain("Concatenate", last, f"{name}_drop", dim=3)
            last, channels = f"{name}_cat", channels + 12
        layers[f"b{block}_bn"] = plain("BatchNorm", last)
        if block < 3:
            layers[f"b{block}_conv"] = conv(f"b{block}_bn", 1, channels, 1, "VALID")
            layers[f"b{block}_drop"] = plain("Dropout", f"b{block}_conv", dropout_keep_prob=0.2)
            layers[f"b{block}_pool"] = pool(f"b{block}_drop", 2, 2)
            last = f"b{block}_pool"
    layers["pool"] = pool("b3_bn", 3, 1)
    layers["fc"] = plain("InnerProduct", "pool", num_outputs=10)
    layers["prob"] = plain("Softmax", "fc")
    layers["accuracy"] = plain("Accuracy", "fc")
    return {"name": "densenet", "layers": layers}


CONVERTED = {"resnet50": resnet50(), "densenet": densenet()}

DECONVOLUTION = {
    "name": "generator",
    "layers": {
        "data": {"type": "Input", "parents": [], "tensor": [16, 8, 8, 64]},
        "up": {
            "type": "Deconvolution",
            "parents": ["data"],
            "filter": [5, 5, 32, 64],
            "strides": [1, 2, 2, 1],
            "padding": "SAME",
            "output_shape": [16, 16, 16, 32],
        },
    },
}
