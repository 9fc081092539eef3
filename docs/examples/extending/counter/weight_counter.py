"""A counter, and a format of a line."""

from costproof.ledger.counter import CounterInfo
from costproof.reports.outputs import Output
from costproof.tracers.counters.protocol import Counted, Counter, Row, counted


def count(model, args) -> Counted:
    """Count one multiply-accumulate per parameter, for any input."""
    rows = [Row(name.rpartition(".")[0], "", p.numel()) for name, p in model.named_parameters()]
    return counted(sum(row.value for row in rows), rows)


INFO = CounterInfo("weights", package="weight-counter", tested=("1.0",), unit="mac", level="module")
COUNTER = Counter(INFO, count)

LINE = Output(
    "verdict-line",
    "verdict.txt",
    "target and verdict in one line",
    data=lambda report: (report.capture.target.name, report.verdict),
    write=lambda: lambda data: f"{data[0]}: {data[1]}\n",
)
