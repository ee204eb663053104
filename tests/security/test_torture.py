"""Runs that are killed and interrupted end like ones that were not: a few of ``make torture``."""

import sys
import time

import pytest

from tests.security.torture import Torture


@pytest.fixture(scope="module")
def torture(tmp_path_factory):
    torture = Torture(
        tmp_path_factory.mktemp("torture"), lambda line: sys.stdout.write(f"{line}\n")
    )
    yield torture
    assert torture.stops  # not all of them came too late


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("ppo", "exact"),
        ("dqn", "kill"),
        ("gail", "exact"),
        ("classifier", "kill"),
        ("preference", "kill"),
        ("preference", "exact"),
        ("preference", "plain"),
        ("frames", "kill"),
        ("frames", "exact"),
    ],
)
def test_a_run_that_is_stopped_and_resumed_ends_like_one_that_was_not(kind, way, torture):
    torture.prepare(kind)
    assert torture.stop_and_compare(kind, time.time_ns() % 1_000_000, way, most=2) == []
