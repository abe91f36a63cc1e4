"""Measures in a process of its own, which a sick device may take down.

One JSON object a line: it reads `device` and `seed`, answers with `header` or `problem`, reads
`minutes` and in `done` the keys of known cases, and writes `begin` (a case that is about to run)
and `row` (a measured one) in turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any

from traincast.measure.bench.header import header
from traincast.measure.bench.runner import measure, start


def main() -> None:
    """Answer one request."""
    asked = json.loads(sys.stdin.readline())
    # What libraries print must not get between our lines.
    with os.fdopen(os.dup(1), "w") as out, contextlib.redirect_stdout(sys.stderr):
        os.dup2(2, 1)

        def say(**said: Any) -> None:
            out.write(json.dumps(said) + "\n")
            out.flush()

        try:
            start(asked["device"])
        except SystemExit as refused:
            say(problem=str(refused))
            raise SystemExit(2) from None
        say(header=header(asked["seed"]))
        asked |= json.loads(sys.stdin.readline())
        deadline = time.monotonic() + 60 * asked["minutes"]
        known = set(asked["done"])
        for row in measure(asked["seed"], known, deadline, lambda case: say(begin=case)):
            say(row=row)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more
        main()
