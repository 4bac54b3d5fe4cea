"""Where files lie: from the current folder, and from the root of the repository that CI pages start at."""

from __future__ import annotations

from pathlib import Path


def repository_root(folder: Path) -> Path:
    """The nearest folder from here up that holds ``.git`` (a file in a worktree), else this one."""
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)


def path_from_here(file: Path | None) -> str:
    """The file from the current folder where it lies in it, else its whole path; '' for None."""
    if file is None:
        return ""
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)
