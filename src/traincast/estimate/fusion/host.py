"""What the host takes to run compiled code: Python that launches one kernel after another.

Without CUDA graphs every kernel is still launched from the generated wrapper. On the host where
eager PyTorch took `dispatch_s` = 38 µs an op, six compiled networks took 31 to 43 µs a launch and
40 to 44 µs for each kernel or library call counted here, 62 in one (see docs/compile.md).
"""

from __future__ import annotations

import numpy as np

from traincast.estimate.program import Floats, Kernels, Program
from traincast.estimate.roofline import Efficiency

_LAUNCH = 1.05
"""Host seconds to launch one kernel from compiled code, of those to issue one eager op."""


def launch_seconds(program: Program, kernels: Kernels, efficiency: Efficiency) -> Floats:
    """Return host seconds to launch each op of a compiled program forward and backward."""
    if not efficiency.overlap:
        return np.zeros((len(program.names), 2))
    launches = np.zeros((len(program.classes), 2))
    rows = kernels.op_class, np.minimum(kernels.phase, 1)
    # A library call that launches many kernels, such as a recurrent network, launches them itself.
    np.add.at(launches, rows, np.minimum(kernels.launches, 3.0))
    return launches[program.op_class] * _LAUNCH * efficiency.dispatch_s
