"""Settings of all tests.

Property tests draw the same cases every time and have no deadline, so that a run says something of
the code and not of the machine. `HYPOTHESIS_PROFILE=search` draws new ones each time.

Traced graphs are kept in a folder that all tests of a session share, and measurements and profiles
in an empty one: never in the user's own, which would also sway the predictions under test.

Commands that tests start can be interrupted, even where the tests themselves run in the background
of a shell that has its jobs ignore that.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.fixture(scope="session", autouse=True)
def graph_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base = tmp_path_factory.getbasetemp()
    # Workers of one session have a folder each, side by side.
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "graphs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINCAST_CACHE", str(shared))
        patch.setenv("XDG_DATA_HOME", str(base / "data"))
        yield shared
