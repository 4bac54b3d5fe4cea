"""The installed version."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("ampdoctor")
except PackageNotFoundError:  # run from a source tree that was never installed
    VERSION = "0.0.0+source"
