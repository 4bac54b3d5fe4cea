"""``ampdoctor``, and ``python -m ampdoctor``."""

from __future__ import annotations

import sys


def main() -> None:
    """Never returns: ends the process with the documented exit code; Ctrl-C while it starts is one line."""
    try:
        from ampdoctor.cli.main import main as command
    except KeyboardInterrupt:
        from ampdoctor.cli.exits import FAILED, INTERRUPTED

        print(INTERRUPTED, file=sys.stderr)
        sys.exit(FAILED)
    command()


if __name__ == "__main__":
    main()
