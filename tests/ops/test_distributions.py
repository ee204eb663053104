import math

import pytest
import torch
from torch.distributions import Categorical, Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from guerdon.ops.distributions import (
    categorical_log_prob,
    categorical_log_prob_entropy,
    categorical_mode,
    categorical_sample,
    clipped_gaussian_log_prob,
    gaussian_entropy,
    gaussian_log_prob,
    gaussian_sample,
    squashed_gaussian_log_prob,
    squashed_gaussian_sample,
)
from tests.gradients import gradient_is_right

T = torch.tensor
LOGIT = T([0.2, 0.3, 0.5]).log() + 7  # a constant changes nothing


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


# --- categorical


def test_log_probabilities_and_entropy_of_known_odds():
    entropy = -(0.2 * math.log(0.2) + 0.3 * math.log(0.3) + 0.5 * math.log(0.5))
    for act, probability in enumerate((0.2, 0.3, 0.5)):
        log_prob, both = categorical_log_prob_entropy(LOGIT, T(act))
        assert log_prob.item() == pytest.approx(math.log(probability))
        assert both.item() == pytest.approx(entropy)
        assert categorical_log_prob(LOGIT, T(act)).item() == pytest.approx(log_prob.item())
    assert categorical_mode(LOGIT) == 2


def test_categorical_agrees_with_torch():
    logit, act = normal(3, 4, 5), torch.arange(12).reshape(3, 4) % 5
    reference = Categorical(logits=logit)
    torch.testing.assert_close(categorical_log_prob(logit, act), reference.log_prob(act))
    log_prob, entropy = categorical_log_prob_entropy(logit, act)
    torch.testing.assert_close(log_prob, reference.log_prob(act))
    torch.testing.assert_close(entropy, reference.entropy())


def test_draws_come_as_often_as_the_odds_say():
    draws = categorical_sample(LOGIT.expand(200_000, 3), seeded())
    share = torch.bincount(draws, minlength=3) / 200_000
    # 5 standard deviations of a share are below 0.0056
    assert share.tolist() == pytest.approx([0.2, 0.3, 0.5], abs=0.0056)
    assert draws.dtype == torch.int64


def test_draws_depend_on_the_generator_and_on_nothing_else():
    logit = normal(100, 4)
    state = torch.get_rng_state()
    first = categorical_sample(logit, seeded(1))
    assert torch.equal(first, categorical_sample(logit, seeded(1)))
    assert not torch.equal(first, categorical_sample(logit, seeded(2)))
    gaussian_sample(logit, logit, seeded())
    squashed_gaussian_sample(logit, logit, seeded())
    assert torch.equal(state, torch.get_rng_state())


def test_the_gradients_of_a_categorical_are_right():
    act = T([0, 2])
    assert gradient_is_right(lambda x: categorical_log_prob_entropy(x, act), normal(2, 3))
    assert gradient_is_right(lambda x: categorical_log_prob(x, act), normal(2, 3))


# --- Gaussian


def test_the_density_of_a_standard_normal():
    # -0.5 - 0.5 ln(2 pi) at 1, and twice -0.5 ln(2 pi) at the origin of a plane
    half = 0.5 * math.log(2 * math.pi)
    zero = torch.zeros(1)
    assert gaussian_log_prob(zero, zero, torch.ones(1)).item() == pytest.approx(-0.5 - half)
    zero = torch.zeros(2)
    assert gaussian_log_prob(zero, zero, zero).item() == pytest.approx(-2 * half)
    assert gaussian_entropy(zero).item() == pytest.approx(2 * (0.5 + half))
    # twice as wide: the density halves in each direction
    wide = torch.full((2,), math.log(2))
    assert gaussian_log_prob(zero, wide, zero).item() == pytest.approx(-2 * half - math.log(4))


@pytest.mark.parametrize("shape", [(3, 4, 2), (2,)])
def test_the_gaussian_agrees_with_torch(shape):
    mu, act, log_std = normal(3, 4, 2), normal(3, 4, 2, seed=1), 0.5 * normal(*shape, seed=2)
    reference = Independent(Normal(mu, log_std.exp()), 1)
    torch.testing.assert_close(gaussian_log_prob(mu, log_std, act), reference.log_prob(act))
    torch.testing.assert_close(gaussian_entropy(log_std).expand(3, 4), reference.entropy())
    squashed = TransformedDistribution(Normal(mu, log_std.exp()), TanhTransform())
    torch.testing.assert_close(
        squashed_gaussian_log_prob(mu, log_std, act.tanh()), squashed.log_prob(act.tanh()).sum(-1)
    )


def test_gaussian_draws_have_the_mean_and_the_spread():
    mu = T([1.0, -2.0]).expand(100_000, 2)
    draws = gaussian_sample(mu, T([0.5, 2.0]).log(), seeded())
    assert draws.mean(0).tolist() == pytest.approx([1, -2], abs=0.035)
    assert draws.std(0).tolist() == pytest.approx([0.5, 2], rel=0.02)


def test_what_is_clipped_to_a_bound_has_the_probability_of_all_of_it():
    mu, log_std = T([0.0, 1.0]).double(), T([0.0, math.log(2.0)]).double()
    low, high = T([-1.0, -1.0]).double(), T([1.0, 1.0]).double()
    reference = Normal(mu, log_std.exp())
    act = T([[1.0, 0.5], [-1.0, 1.0]]).double()
    found = clipped_gaussian_log_prob(mu.expand(2, 2), log_std, act, low, high)
    density, below, above = reference.log_prob(act), reference.cdf(low), 1 - reference.cdf(high)
    assert found[0].item() == pytest.approx(above[0].log().item() + density[0, 1].item())
    assert found[1].item() == pytest.approx(below[0].log().item() + above[1].log().item())


def test_a_clipped_gaussian_is_a_distribution():
    edges = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    act = torch.cat([(edges[1:] + edges[:-1]) / 2, T([-1.0, 1.0]).double()])[:, None]
    mu, bound = torch.full_like(act, 0.5), T([1.0]).double()
    mass = clipped_gaussian_log_prob(mu, T([-0.5]).double(), act, -bound, bound).exp()
    assert mass[:-2].sum().item() * 1e-4 + mass[-2:].sum().item() == pytest.approx(1, abs=1e-6)


# --- squashed Gaussian


@pytest.mark.parametrize("edge", [0.0, 0.01, 0.2])
def test_the_edge_keeps_the_squashed_density_a_density(edge):
    edges = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    act = ((edges[1:] + edges[:-1]) / 2)[:, None]
    mu, log_std = torch.full_like(act, -0.7), T([-0.2]).double()
    density = squashed_gaussian_log_prob(mu, log_std, act, edge).exp()
    assert density.sum().item() * 1e-4 == pytest.approx(1, abs=1e-4)
    plain = squashed_gaussian_log_prob(mu, log_std, act)
    inside = act[:, 0].abs() < 1 - edge
    torch.testing.assert_close(density[inside].log(), plain[inside])


def test_at_the_edge_the_action_of_somebody_else_is_not_impossible():
    mu, log_std, bound = torch.zeros(1, 1), torch.full((1, 1), -1.0), torch.ones(1, 1)
    assert squashed_gaussian_log_prob(mu, log_std, bound) < -200
    assert squashed_gaussian_log_prob(mu, log_std, bound, 0.01) > -30


def test_the_density_of_a_draw_is_that_of_the_action():
    mu, log_std = normal(50, 3), 0.3 * normal(50, 3, seed=1)
    act, log_prob = squashed_gaussian_sample(mu, log_std, seeded())
    assert (act.abs() < 1).all()
    torch.testing.assert_close(log_prob, squashed_gaussian_log_prob(mu, log_std, act))


def test_the_squashed_density_integrates_to_one():
    edges = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    act = ((edges[1:] + edges[:-1]) / 2)[:, None]
    mu = torch.full_like(act, 0.5)
    density = squashed_gaussian_log_prob(mu, T([-0.5]).double(), act).exp()
    assert density.sum().item() * 1e-4 == pytest.approx(1, abs=1e-6)


def test_a_squashed_action_at_the_bound_has_a_finite_density_and_gradient():
    mu = T([[30.0], [-30.0]], requires_grad=True)
    log_std = T([[-2.0], [-2.0]], requires_grad=True)
    act, log_prob = squashed_gaussian_sample(mu, log_std, seeded())
    assert act[:, 0].tolist() == [1, -1]  # rounded in float32
    given = squashed_gaussian_log_prob(mu, log_std, act)
    (log_prob + given).sum().backward()
    for x in (log_prob, given, mu.grad, log_std.grad):
        assert x.isfinite().all()
    # log(1 - tanh(x)^2) is log 4 - 2 |x| far out; the noise of the draw is (raw - mu) / std
    raw = gaussian_sample(mu, log_std, seeded())
    expected = gaussian_log_prob(mu, log_std, raw) - (math.log(4) - 2 * raw[:, 0].abs())
    torch.testing.assert_close(log_prob, expected)


def test_the_gradients_of_gaussians_are_right():
    mu, log_std, act = normal(2, 3), 0.3 * normal(2, 3, seed=1), normal(2, 3, seed=2)
    assert gradient_is_right(gaussian_log_prob, mu, log_std, act)
    assert gradient_is_right(gaussian_entropy, log_std)
    assert gradient_is_right(squashed_gaussian_log_prob, mu, log_std, act.tanh())
    assert gradient_is_right(squashed_gaussian_log_prob, mu, log_std[0], act.tanh())
    assert gradient_is_right(lambda *x: gaussian_sample(*x, seeded()), mu, log_std)
    assert gradient_is_right(lambda *x: squashed_gaussian_sample(*x, seeded()), mu, log_std)


# --- shapes


@pytest.mark.parametrize(
    "call",
    [
        lambda: categorical_log_prob(torch.zeros(3, 2), torch.zeros(3, 1, dtype=torch.long)),
        lambda: categorical_log_prob_entropy(torch.zeros(3, 2), torch.zeros(1, dtype=torch.long)),
        lambda: gaussian_log_prob(torch.zeros(3, 2), torch.zeros(2), torch.zeros(2)),
        lambda: gaussian_log_prob(torch.zeros(3, 2), torch.zeros(3, 1), torch.zeros(3, 2)),
        lambda: gaussian_sample(torch.zeros(3, 2), torch.zeros(1), seeded()),
        lambda: squashed_gaussian_sample(torch.zeros(2), torch.zeros(3, 2), seeded()),
        lambda: squashed_gaussian_log_prob(torch.zeros(3, 1), torch.zeros(1), torch.zeros(3)),
    ],
)
def test_shapes_that_would_broadcast_are_refused(call):
    with pytest.raises(ValueError, match="shape"):
        call()
