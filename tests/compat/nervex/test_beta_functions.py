import pytest
import torch

from guerdon.compat.nervex.rl_utils import beta_function_map
from tests.gradients import gradient_is_right

HALF = torch.tensor(0.5)
uniform, cpw, cvar, wang, power = beta_function_map.values()


def test_known_values():
    assert uniform(HALF) == 0.5
    # 0.5^0.5 / (2 * 0.5^0.5)^2 = 0.7071 / 2
    assert cpw(HALF, 0.5).item() == pytest.approx(0.5**0.5 / 2)
    assert cvar(HALF, 0.1).item() == pytest.approx(0.05)
    # the standard normal lies below 0.75 with probability 0.77337
    assert wang(HALF, 0.75).item() == pytest.approx(0.7733726)
    assert wang(HALF, -0.75).item() == pytest.approx(1 - 0.7733726)
    assert power(torch.tensor(0.25), 1.0).item() == pytest.approx(0.5)
    # the mirror image: one less the root of 0.25
    assert power(torch.tensor(0.75), -1.0).item() == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["uniform", "CPW", "CVaR", "Wang", "Pow"])
def test_every_measure_keeps_the_order_of_fractions_and_stays_within_them(name):
    beta = beta_function_map[name]
    tau = torch.linspace(0, 1, 101, dtype=torch.float64)
    distorted = beta(tau)
    assert (distorted.diff() > 0).all()
    assert distorted[0] == 0
    assert distorted[-1].item() == pytest.approx(0.71 if name == "CVaR" else 1)
    assert gradient_is_right(beta, tau[10:90:20])


@pytest.mark.parametrize("beta", [cvar, wang, power])
def test_by_default_measures_are_averse_to_risk(beta):
    tau = torch.linspace(0.01, 0.99, 50)
    assert (beta(tau) < tau).all()
