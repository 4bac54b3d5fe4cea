"""pytest's fixture ``amp_check``: a test that fails where a model breaks in mixed precision.

Loaded whenever pytest starts in an environment with ampdoctor, so it imports nothing before a test asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    import torch

    from ampdoctor.api.report import Report
    from ampdoctor.load.live import LossFn

MARKER = "amp_limits"


class AmpCheck(Protocol):
    """The fixture's type, for a test's annotation."""

    def __call__(
        self, model: torch.nn.Module, batch: Any, loss_fn: LossFn | str | None = None, **limits: Any
    ) -> Report:
        """The report on a model that passes; an AssertionError on one that does not."""
        ...


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known: ``pytest --markers`` lists it, and ``--strict-markers`` allows it."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(headroom_bits=..., gradient_underflow=..., dtype=..., ...): limits and options for every "
        "amp_check of a test; what the call itself gives counts first.",
    )


@pytest.fixture
def amp_check(request: pytest.FixtureRequest) -> AmpCheck:
    """``amp_check(model, batch, loss_fn=None, **limits)``: fails where the model breaks in mixed precision.

    Returns the report otherwise. ``limits`` are keys of the config's section of that name and keywords of
    ``ampdoctor.scan``.
    """
    marked: dict[str, Any] = {}
    for mark in reversed(list(request.node.iter_markers(MARKER))):  # The closest to the test is the last.
        if mark.args:
            raise pytest.UsageError(f"{MARKER} takes keywords, such as {MARKER}(headroom_bits=2)")
        marked.update(mark.kwargs)

    def amp_check(
        model: torch.nn.Module, batch: Any, loss_fn: LossFn | str | None = None, **limits: Any
    ) -> Report:
        __tracebackhide__ = True
        from ampdoctor.api import drawing_nothing

        with drawing_nothing():
            from ampdoctor.api.check import check, failure
        from ampdoctor.errors import AmpDoctorError

        mistake = ""
        try:
            report = check(model, batch, loss_fn, **{**marked, **limits})
        except AmpDoctorError as error:
            mistake = f"{error.user_traceback}\n{error}".lstrip()
        if mistake:  # Outside of the except: its own traceback, through ampdoctor, would come along.
            pytest.fail(mistake)
        reason = failure(report)
        if reason:
            raise AssertionError(reason)
        return report

    return amp_check
