"""Run the command line as ``python -m costproof``."""

from __future__ import annotations

import sys

from costproof.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
