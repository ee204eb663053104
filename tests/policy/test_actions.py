import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.data import Batch
from guerdon.policy.actions import CategoricalActions, GaussianActions, make_actions


def generator():
    return torch.Generator().manual_seed(0)


def test_the_family_follows_the_space():
    assert isinstance(make_actions(spaces.Discrete(3), "ppo"), CategoricalActions)
    assert isinstance(make_actions(spaces.Box(-1, 1, (2,)), "ppo"), GaussianActions)


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Box(0, 9, (2,), np.int64),
        spaces.Box(-1.0, 1.0, (), np.float32),
    ],
    ids=str,
)
def test_another_space_is_refused_with_the_policys_name(space):
    with pytest.raises(ValueError, match="ppo supports Discrete and real-valued Box action spaces"):
        make_actions(space, "ppo")


# --- categorical


def test_the_mode_is_the_most_likely_action():
    actions = CategoricalActions(spaces.Discrete(3, start=4))
    act = actions.mode({"logit": torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])})
    assert act.tolist() == [5, 4]
    assert act.dtype == torch.int64


def test_actions_are_drawn_by_their_chances():
    actions = CategoricalActions(spaces.Discrete(3, start=-1))
    logit = torch.tensor([0.2, 0.3, 0.5]).log().expand(20_000, 3)
    drawn = actions.sample({"logit": logit}, generator()).act
    shares = [(drawn == number).mean() for number in (-1, 0, 1)]
    assert shares == pytest.approx([0.2, 0.3, 0.5], abs=0.015)


def test_stored_actions_are_counted_from_zero():
    actions = CategoricalActions(spaces.Discrete(3, start=5))
    assert actions.taken(Batch(act=np.array([5, 7]))).tolist() == [0, 2]


def test_chances_and_entropy_of_choices():
    actions = CategoricalActions(spaces.Discrete(2))
    logit = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log()
    log_prob, entropy = actions.log_prob_entropy({"logit": logit}, torch.tensor([1, 0]))
    assert log_prob.exp().tolist() == pytest.approx([0.75, 0.5])
    expected = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert entropy.tolist() == pytest.approx([expected, math.log(2)])


# --- Gaussian


def gaussian(space):
    return GaussianActions(space), space.shape


def test_the_mode_is_the_clipped_mean():
    actions, _ = gaussian(spaces.Box(np.float32([-1.0, 0.0]), np.float32([1.0, 9.0])))
    output = {"mu": torch.tensor([[3.0, 4.0]]), "log_std": torch.zeros(1, 2)}
    assert actions.mode(output).tolist() == [[1.0, 4.0]]


def test_what_was_drawn_is_kept_and_what_is_done_has_the_spaces_type():
    actions, _ = gaussian(spaces.Box(-0.5, 0.5, (2,), np.float64))
    output = {"mu": torch.zeros(500, 2), "log_std": torch.full((500, 2), math.log(2.0))}
    batch = actions.sample(output, generator())
    assert batch.act.dtype == np.float64
    assert batch.policy.raw.std() == pytest.approx(2.0, rel=0.1)
    np.testing.assert_array_equal(batch.act, np.clip(batch.policy.raw, -0.5, 0.5))
    np.testing.assert_array_equal(actions.taken(batch), batch.policy.raw)


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 3)], ids=str)
def test_density_and_entropy_are_those_of_all_dimensions(shape):
    actions, _ = gaussian(spaces.Box(-1.0, 1.0, shape, np.float32))
    source = generator()
    mu, act = (torch.randn(4, *shape, generator=source) for _ in range(2))
    log_std = torch.randn(4, *shape, generator=source)
    log_prob, entropy = actions.log_prob_entropy({"mu": mu, "log_std": log_std}, act)
    normal = torch.distributions.Normal(mu, log_std.exp())
    torch.testing.assert_close(log_prob, normal.log_prob(act).flatten(1).sum(1))
    torch.testing.assert_close(entropy, normal.entropy().flatten(1).sum(1))


def test_an_action_at_a_bound_is_as_likely_as_all_that_is_clipped_to_it():
    space = spaces.Box(np.float32([-1, -np.inf]), np.float32([1, np.inf]))
    actions, _ = gaussian(space)
    output = {"mu": torch.tensor([[4.0, 0.0]] * 2), "log_std": torch.zeros(2, 2)}
    found = actions.log_prob(output, torch.tensor([[1.0, 0.3], [0.5, 0.3]], dtype=torch.float64))
    normal = torch.distributions.Normal(output["mu"], 1.0)
    other = normal.log_prob(torch.tensor(0.3))[:, 1]
    inside = normal.log_prob(torch.tensor(0.5))[1, 0]
    torch.testing.assert_close(found - other, torch.stack([torch.tensor(-0.00135), inside]),
                               atol=1e-4, rtol=0)  # fmt: skip


def test_a_space_without_bounds_clips_nothing():
    actions, _ = gaussian(spaces.Box(-np.inf, np.inf, (1,), np.float32))
    output = {"mu": torch.tensor([[1e6]]), "log_std": torch.zeros(1, 1)}
    assert actions.mode(output).tolist() == [[1e6]]


def test_they_name_what_has_to_be_read_for_them():
    assert CategoricalActions(spaces.Discrete(2)).fields == ("act",)
    assert GaussianActions(spaces.Box(-1, 1, (1,))).fields == ("act", "policy")
