"""``python -m costproof``."""

from __future__ import annotations

import sys

from costproof.cli.main import run

if __name__ == "__main__":
    sys.exit(run())
