"""What makes the arguments of models of time series: what was seen, what goes with it, and what is to come."""

from __future__ import annotations

from functools import partial

from costproof.ledger.attributes import attribute
from costproof.models.generic.makers import Case, Example, makes


@makes("past_values")
def _past(case: Case) -> Example:
    """[B, past], with the lags that the configuration wants; [B, past, channels] of several series, and turned."""
    return Example(case.floats(case.batch, _seen(case), *_channels(case)))


@makes("past_observed_mask")
def _observed(case: Case) -> Example | None:
    """As the past values; of a model that has a time for each of them."""
    return _past(case) if case.needs("past_time_features") else None


@makes("future_values")
def _future(case: Case) -> Example | None:
    """As the past values, which a decoder takes from one position on; elsewhere they are what a loss compares with."""
    if not case.needs("past_time_features"):
        return None
    return Example(case.floats(case.batch, _coming(case), *_channels(case)))


def _times(case: Case, future: bool) -> Example | None:
    """[B, positions, features of a time]."""
    if not case.needs("past_time_features"):
        return None
    positions = _coming(case) if future else _seen(case)
    return Example(case.floats(case.batch, positions, case.number("num_time_features", default=0)))


for _name, _future_ones in {"past_time_features": False, "future_time_features": True}.items():
    makes(_name)(partial(_times, future=_future_ones))


def _channels(case: Case) -> tuple[int, ...]:
    """How many series there are; nothing of one that has no dimension of its own."""
    channels = case.number("num_input_channels", "input_size", default=1)
    return (channels,) if channels > 1 or case.turned else ()


def _seen(case: Case) -> int:
    """Positions of the past, with the lags that the configuration wants."""
    context = case.number("context_length", "prediction_length", default=case.length)
    lags: list[int] = attribute(case.config, "lags_sequence", None) or [0]
    return context + max(lags)


def _coming(case: Case) -> int:
    return case.number("prediction_length", default=case.target)
