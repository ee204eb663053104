"""For all tests: one thread, since they run side by side; no records in the user's home."""

import os
from contextlib import nullcontext

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.rounding import OtherRounding

# How long an example takes says how busy the machine is. Fixtures may be shared by examples.
# With CI=1 the examples are always the same, so that a check of a change can be repeated.
settings.register_profile(
    "guerdon",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("guerdon")


def pytest_addoption(parser):
    what = "change the last bits of PyTorch's results, as another processor would"
    parser.addoption("--other-rounding", type=int, metavar="SEED", help=what)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    seed = item.config.getoption("other_rounding")
    with nullcontext() if seed is None else OtherRounding(seed):
        return (yield)


@pytest.fixture(params=[False, True], ids=["rounding", "other_rounding"])
def rounding(request):
    """The rounding of this processor, and another one."""
    with OtherRounding() if request.param else nullcontext():
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def _state_home(tmp_path_factory):
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    yield
    del os.environ["XDG_STATE_HOME"]
