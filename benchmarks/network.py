"""Build every model type of transformers with names of files of others in its configuration, and count requests.

    python -m benchmarks.network [TYPE ...]

The Hub is a server on this machine that counts what it is asked, and each attempt to look up or to reach another
machine is counted too. The right answer is 0 of both.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter

from tests.oracles.network import configurations, counted, outcome


def main(types: list[str]) -> int:
    """Walk the types, all unless given."""
    with counted() as (address, asked):
        os.environ["HF_ENDPOINT"] = address
        from transformers import CONFIG_MAPPING

        found: Counter[str] = Counter()
        for name in types or list(CONFIG_MAPPING):
            begin, before = time.monotonic(), len(asked)
            for i, config in enumerate(configurations(name)):
                found[outcome(config, build=i == 0)] += 1
            took = time.monotonic() - begin
            if took > 10 or asked[before:]:
                print(f"{name}: {took:.0f} s, {asked[before:]}", flush=True)
        print(", ".join(f"{n:,} {word}" for word, n in found.most_common()))
        print(f"{len(asked)} requests")
        return 1 if asked else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
