"""For tests of runs that are stopped."""

import signal

import pytest


@pytest.fixture
def signals():
    """Signals that stop a process reach it, also where the tests run in the background."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
