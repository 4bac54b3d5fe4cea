"""Runs a script as ``python script.py ...`` does, in a process in which CUDA is host memory."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]

import host_cuda  # noqa: E402  (before torch)

host_cuda.install(2)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
