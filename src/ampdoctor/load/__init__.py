"""From a Config to a Workload: the only place that imports and calls the user's code before a probe."""

from ampdoctor.load.assemble import load
from ampdoctor.load.workload import Workload

__all__ = ["Workload", "load"]
