"""The intermediate representation: ops, tensors, sizes, the specification and the JSON form."""

from traincast.graph.form import graph_from_dict, graph_from_json, graph_to_dict, graph_to_json
from traincast.graph.graph import (
    DIFFERENTIABLE,
    DTYPE_BYTES,
    FLOATS,
    Attr,
    Graph,
    Op,
    Tensor,
    elements,
)
from traincast.graph.kinds import KINDS, Kernel
from traincast.graph.naming import name_dims
from traincast.graph.size import Size
from traincast.graph.spec import verify

__all__ = [
    "DIFFERENTIABLE",
    "DTYPE_BYTES",
    "FLOATS",
    "KINDS",
    "Attr",
    "Graph",
    "Kernel",
    "Op",
    "Size",
    "Tensor",
    "elements",
    "graph_from_dict",
    "graph_from_json",
    "graph_to_dict",
    "graph_to_json",
    "name_dims",
    "verify",
]
