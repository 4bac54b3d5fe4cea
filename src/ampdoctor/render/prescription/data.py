"""A prescription as the document ``ampdoctor.prescription/1``."""

from __future__ import annotations

import json

from ampdoctor.remedy.prescription import Prescription
from ampdoctor.render.options import Options


def render(prescription: Prescription, options: Options) -> str:
    """Indented, in ASCII, with a newline at its end."""
    return json.dumps(prescription.to_dict(), indent=2, allow_nan=False) + "\n"
