"""Settings of all tests.

Property tests draw the same cases every time and have no deadline, so that a run says something of
the code and not of the machine. `HYPOTHESIS_PROFILE=search` draws new ones each time.
"""

import os

from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
