"""Finds where a mixed-precision PyTorch run breaks, why, and what to do about it.

``ampdoctor.scan(model, batch, loss_fn)`` returns a ``Report``; ``ampdoctor.apply(model, "plan.yaml")``
makes a model follow what ``ampdoctor prescribe --save plan.yaml`` found. Everything here is imported when it
is first used: ``import ampdoctor`` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ampdoctor.api import drawing_nothing

if TYPE_CHECKING:
    from ampdoctor.api.flight_recorder import FlightRecorder
    from ampdoctor.api.report import Report
    from ampdoctor.api.scan import scan
    from ampdoctor.diagnose.report import Finding, FirstFault, LossScale
    from ampdoctor.errors import AmpDoctorError, ConfigError, LoadError, ProbeError
    from ampdoctor.remedy.apply import apply
    from ampdoctor.version import VERSION as __version__

__all__ = [
    "AmpDoctorError",
    "ConfigError",
    "Finding",
    "FirstFault",
    "FlightRecorder",
    "LoadError",
    "LossScale",
    "ProbeError",
    "Report",
    "__version__",
    "apply",
    "scan",
]

_HOMES = {
    "AmpDoctorError": ("ampdoctor.errors", "AmpDoctorError"),
    "ConfigError": ("ampdoctor.errors", "ConfigError"),
    "Finding": ("ampdoctor.diagnose.report", "Finding"),
    "FirstFault": ("ampdoctor.diagnose.report", "FirstFault"),
    "FlightRecorder": ("ampdoctor.api.flight_recorder", "FlightRecorder"),
    "LoadError": ("ampdoctor.errors", "LoadError"),
    "LossScale": ("ampdoctor.diagnose.report", "LossScale"),
    "ProbeError": ("ampdoctor.errors", "ProbeError"),
    "Report": ("ampdoctor.api.report", "Report"),
    "__version__": ("ampdoctor.version", "VERSION"),
    "apply": ("ampdoctor.remedy.apply", "apply"),
    "scan": ("ampdoctor.api.scan", "scan"),
}
"""{public name: (module, its name there)}"""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ampdoctor' has no attribute {name!r}")
    module, inside = _HOMES[name]
    with drawing_nothing():
        value = getattr(importlib.import_module(module), inside)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
