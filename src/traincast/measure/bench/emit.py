"""Joins the benchmark's modules into one file that runs where traincast is not installed."""

from __future__ import annotations

import ast
from pathlib import Path

MODULES = (
    "shapes", "timing", "groups", "products", "memory", "indexing", "images", "seldom",
    "system", "host", "header", "runner",
)  # fmt: skip
"""In the order of dependence; what a reader of the file should see first comes from the last."""


def emit() -> str:
    """Return the source of a stand-alone script; it needs torch and the standard library."""
    here = Path(__file__).parent
    plain: set[str] = set()
    named: dict[str, set[str]] = {}
    bodies, title = [], ""
    for name in MODULES:
        source = (here / f"{name}.py").read_text(encoding="utf-8")
        lines, tree = source.splitlines(), ast.parse(source)
        title = ast.get_docstring(tree) or ""
        for node in tree.body:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            if isinstance(node, ast.Import):
                plain.update(lines[first:last])
            elif not (node.module or "").startswith("traincast."):
                named.setdefault(node.module or "", set()).update(a.name for a in node.names)
            lines[first:last] = [""] * (last - first)
        body = "\n".join(lines[tree.body[0].end_lineno :]).strip("\n")
        bodies.append(f"# {title.splitlines()[0]}\n\n{body}")
    named.pop("__future__")
    froms = [f"from {module} import {', '.join(sorted(names))}" for module, names in named.items()]
    head = "\n".join([*sorted(plain), *sorted(froms)])
    future = "from __future__ import annotations"
    return f'"""{title}\n"""\n\n{future}\n\n{head}\n\n' + "\n\n\n".join(bodies) + "\n"
