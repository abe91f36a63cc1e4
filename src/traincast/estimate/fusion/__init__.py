"""Compiled programs: what `torch.compile` makes of a network, as kernels on values.

`fused` turns a program of eager ops into one of fused kernels and library calls.
"""

from traincast.estimate.fusion.host import launch_seconds
from traincast.estimate.fusion.layout import compiled_layout
from traincast.estimate.fusion.program import fused

__all__ = ["compiled_layout", "fused", "launch_seconds"]
