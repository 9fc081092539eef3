"""Which status a stage gets from findings of several."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costproof.compare.compare import compare
from costproof.compare.findings import Finding, FindingStatus, Level
from costproof.views.results import stage_words, worst
from tests.support.toy import toy


def test_the_metrics_that_are_explained_are_named_where_flops_are_not_among_them() -> None:
    found = compare(toy())
    for findings, words in (
        ((finding("exact", "flops"), finding("explained", "params")), "explained (params)"),
        ((finding("explained", "flops"), finding("explained", "params")), "explained"),
        ((finding("exact", "flops"),), "exact"),
        (tuple(finding("explained", m) for m in ("a", "b", "c", "d")), "explained (a, b and 2 more)"),
    ):
        assert stage_words(replace(found, findings=findings), "sam") == words


def finding(status: FindingStatus, metric: str, level: Level = "stage") -> Finding:
    return Finding(
        id=f"sam/{status}#{metric}",
        level=level,
        stage="sam",
        invocation="",
        module="",
        kind="",
        metric=metric,
        status=status,
        values={},
        delta=None,
        causes=(),
        residual=None,
    )


# From the worst to the best; a metric of the headline that one source alone gives is not proven.
ORDER: list[tuple[FindingStatus, str]] = [
    ("unexplained", "output_bytes"),
    ("unsupported", "output_bytes"),
    ("analytic-only", "flops"),
    ("explained", "flops"),
    ("exact", "flops"),
    ("static-only", "params_active"),
    ("not-executed", "params"),
]


@pytest.mark.parametrize("better", range(1, len(ORDER)))
def test_the_worse_of_two(better: int) -> None:
    for worse in range(better):
        pair = [finding(*ORDER[better]), finding(*ORDER[worse])]
        assert worst(pair) == worst(pair[::-1]) == ORDER[worse][0]


@pytest.mark.parametrize("status", ["analytic-only", "static-only", "dynamic-only", "isolated-only"])
def test_one_source_alone(status: FindingStatus) -> None:
    for metric in ("params", "flops", "calls"):
        assert worst([finding("exact", "flops"), finding(status, metric)]) == status
    assert worst([finding("exact", "flops"), finding(status, "input_bytes")]) == "exact"
    assert worst([finding(status, "input_bytes")]) == status


def test_what_only_a_run_can_tell_of_a_module() -> None:
    """Which experts were reached stands in a finding of one source, and says nothing against the stage."""
    for status in ("dynamic-only", "not-executed"):
        assert worst([finding("exact", "calls"), finding(status, "calls", "module")]) == "exact"


def test_without_findings() -> None:
    assert worst([]) == "—"
