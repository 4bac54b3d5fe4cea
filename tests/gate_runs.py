"""`ampdoctor gate` called in a test."""

from __future__ import annotations

import pytest

from ampdoctor.cli.main import run


def gate(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> tuple[str, str]:
    """Stdout, and the last line on stderr, of a gate that ends with this code."""
    capsys.readouterr()
    assert run(["gate", *arguments]) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return out, err.splitlines()[-1] if err else ""
