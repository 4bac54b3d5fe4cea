"""``python -m ampdoctor``."""

from ampdoctor.cli.main import main

main()
