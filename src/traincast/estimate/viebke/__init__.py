"""Training time of whole runs on many-core CPUs, after Viebke et al. 2019: models A and B."""

from traincast.estimate.viebke.counts import work_of
from traincast.estimate.viebke.forecast import THREADS, Forecast, Row, default_run, forecast
from traincast.estimate.viebke.machine import Machine, machine_of, shared_issue
from traincast.estimate.viebke.models import (
    Breakdown,
    Contention,
    Factors,
    Run,
    Times,
    Work,
    model_a,
    model_b,
)
from traincast.estimate.viebke.parameters import (
    Measured,
    Parameters,
    parameters_to_dict,
    read_parameters,
    with_network,
)
from traincast.estimate.viebke.tables import PUBLISHED, Network, Published

__all__ = [
    "PUBLISHED",
    "THREADS",
    "Breakdown",
    "Contention",
    "Factors",
    "Forecast",
    "Machine",
    "Measured",
    "Network",
    "Parameters",
    "Published",
    "Row",
    "Run",
    "Times",
    "Work",
    "default_run",
    "forecast",
    "machine_of",
    "model_a",
    "model_b",
    "parameters_to_dict",
    "read_parameters",
    "shared_issue",
    "with_network",
    "work_of",
]
