"""The errors ampdoctor raises on purpose: a message, a hint, an exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class AmpDoctorError(Exception):
    """Something the user can act on. ``exit_code`` follows the documented contract: 2 or 3."""

    exit_code = 3

    def __init__(self, message: str, hint: str = "", user_traceback: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.user_traceback = user_traceback
        """The user's own part of a traceback, where their code raised; '' otherwise."""

    def __str__(self) -> str:
        """Message and hint: all that a traceback in Python shows of an exception."""
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class ConfigError(AmpDoctorError):
    """The config or the command line is wrong: exit code 2. ``problems`` lists every mistake found."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "", problems: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint)
        self.problems = problems

    def __str__(self) -> str:
        """Every problem, then the hint."""
        return "\n".join((*(self.problems or (self.message,)), *([self.hint] if self.hint else [])))


class LoadError(AmpDoctorError):
    """What the config names could not be loaded (a file, a target, a checkpoint): exit code 2."""

    exit_code = 2


class ProbeError(AmpDoctorError):
    """The measurement could not be made: exit code 3."""

    exit_code = 3


_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "STATUS_ALLOC_FAILED")
"""How torch's allocators and CUDA's libraries say so, where they raise a plain RuntimeError."""

_DEVICE_SAYS = ("CUDA", "STATUS_ALLOC_FAILED")
"""In the words of a GPU whose memory is full; the host's may not be."""


def is_out_of_memory(error: BaseException) -> bool:
    """True where an exception, whoever raised it, says that memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def out_of_memory(doing: str, error: BaseException) -> ProbeError:
    """What to raise where memory ran out; ``doing``: ``in the candidate pass``."""
    said = str(error).strip().partition("\n")[0]
    elsewhere = "on a machine with more memory"
    if type(error).__name__ == "OutOfMemoryError" or any(words in said for words in _DEVICE_SAYS):
        elsewhere = "on the CPU, which emulates CUDA (device: cpu)"
    return ProbeError(
        f"out of memory {doing}" + (f": {said}" if said else ""),
        "scan a smaller batch (fewer samples, shorter sequences), a smaller config of the model, or "
        + elsewhere,
    )


class OutOfMemoryInPass(ProbeError):
    """Memory ran out at a known place of a pass; ``memory_runs_out`` adds what the pass was run for."""

    def __init__(self, place: str, error: BaseException) -> None:
        worded = out_of_memory(place, error)
        super().__init__(worded.message, worded.hint)
        self.place = place
        self.error = error


@contextmanager
def memory_runs_out(doing: Callable[[], str]) -> Iterator[None]:
    """ProbeError where memory runs out inside; ``doing`` is asked then what was being done."""
    try:
        yield
    except OutOfMemoryInPass as found:
        raise out_of_memory(f"{doing()}, {found.place}", found.error) from found.error
    except Exception as error:
        if isinstance(error, AmpDoctorError) or not is_out_of_memory(error):
            raise
        raise out_of_memory(doing(), error) from error
