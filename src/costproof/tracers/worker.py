"""The second process of :mod:`costproof.tracers.both`: one order on stdin, messages on stdout."""

from __future__ import annotations

import os
import pickle
import sys


def main() -> None:
    """Read a target and a workload, trace, and answer with pickled (kind, data) pairs."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not get between the answers

    def send(kind: str, data: object) -> None:
        pickle.dump((kind, data), answers)
        answers.flush()

    from costproof.tracers.both import portable

    try:
        spec, workload, all_calls = pickle.load(sys.stdin.buffer)
        from costproof.tracers.dynamic import dynamic_ledger

        result = dynamic_ledger(
            spec.load(),
            workload,
            lambda what, done, total: send("progress", (what, done, total)),
            all_calls=all_calls,
        )
        send("result", result)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise SystemExit(1) from None
    except BaseException as error:
        send("error", portable(error))


if __name__ == "__main__":
    main()
