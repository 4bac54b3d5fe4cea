"""The errors ampdoctor raises on purpose: a message, a hint, an exit code."""

from __future__ import annotations


class AmpDoctorError(Exception):
    """Something the user can act on. ``exit_code`` follows the documented contract: 2 or 3."""

    exit_code = 3

    def __init__(self, message: str, hint: str = "", user_traceback: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.user_traceback = user_traceback
        """The user's own part of a traceback, where their code raised; '' otherwise."""


class ConfigError(AmpDoctorError):
    """The config or the command line is wrong: exit code 2. ``problems`` lists every mistake found."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "", problems: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint)
        self.problems = problems


class LoadError(AmpDoctorError):
    """What the config names could not be loaded (a file, a target, a checkpoint): exit code 2."""

    exit_code = 2


class ProbeError(AmpDoctorError):
    """The measurement could not be made: exit code 3."""

    exit_code = 3
