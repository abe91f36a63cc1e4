"""The memory order of images in a compiled network."""

from __future__ import annotations

from traincast.estimate.program import Program


def compiled_layout(program: Program, layout: str) -> str:
    """Return the order that images have in a compiled network that was given one.

    Inductor lays images out with channels last unless it expects convolutions to suffer, as
    `GraphLowering.decide_layout_opt` says: a grouped one with several channels a group, one with
    far fewer channels out than in, or all of them small.
    """
    found = [
        (tuple(s.at(1, 1) for s in c.ins[1].shape), int(str(dict(c.attrs).get("groups", 1))))
        for c in program.classes
        if c.kind == "conv" and len(c.ins[1].shape) == 4
    ]
    if layout == "nhwc" or not found:
        return layout
    grouped = any(groups > 1 and shape[1] > 1 for shape, groups in found)
    narrowing = any(shape[0] * 2 <= shape[1] and shape[2] > 1 for shape, _ in found)
    small = all(max(shape[:2]) <= 64 for shape, _ in found)
    return layout if grouped or narrowing or small else "nhwc"
