"""Rows of a table by index, read and added to: look-ups, message passing, routing."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from traincast.measure.bench.groups import Group, memory_dtype
from traincast.measure.bench.timing import HERE, Call, indices, tensor

_BY_INDEX = ("gather", "scatter_add", "index_select", "index_add", "index", "index_put")


def index_groups(draw: random.Random) -> Iterator[Group]:
    """Yield `rows` indices into tables of `columns` rows of `width` values each."""
    cuda = HERE.device == "cuda"
    while True:
        rows = int(2 ** draw.uniform(6, 21 if cuda else 14))
        width = draw.choice((1, 8, 16, 32, 64, 64, 128, 128, 256, 512, 768, 1024))
        columns = max(2, int(rows * 2 ** draw.uniform(-7, 3)))
        if (rows + columns) * width < (3e8 if cuda else 4e6):
            keys = {"rows": rows, "columns": columns, "width": width, "index": "values",
                    "dtype": memory_dtype(draw)}  # fmt: skip
            yield Group("index", keys, "op", _BY_INDEX, 8.0 * (rows + columns) * width)


def index(group: Group) -> dict[str, Call]:
    """Return reads of rows, and sums into them."""
    c = group.keys
    table = tensor((c["columns"], c["width"]), c["dtype"])
    rows = tensor((c["rows"], c["width"]), c["dtype"])
    at = indices(c["columns"], c["rows"])
    # An index for every value, as networks have it along an inner axis: along the first axis,
    # PyTorch turns one that is the same for a whole row into a look-up of rows.
    wide = at[:, None].expand(rows.shape).contiguous()
    return {
        "gather": lambda: table.gather(0, wide),
        "scatter_add": lambda: table.scatter_add_(0, wide, rows),
        "index_select": lambda: table.index_select(0, at),
        "index_add": lambda: table.index_add_(0, at, rows),
        "index": lambda: torch.ops.aten.index(table, [at]),
        "index_put": lambda: torch.ops.aten.index_put_(table, [at], rows, True),
    }
