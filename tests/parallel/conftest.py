"""One Ray for all tests of a process, with few resources."""

import os
import signal

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@pytest.fixture(scope="session")
def ray():
    """Ray on this machine; runs use it, and leave it running."""
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=80 << 20,
        log_to_driver=False,
    )
    yield ray
    ray.shutdown()


@pytest.fixture
def signals():
    """Signals that stop a process reach it, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
