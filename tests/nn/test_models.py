import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.data import Batch
from guerdon.nn import (
    ActorCritic,
    DeterministicActor,
    GaussianActor,
    ModelConfig,
    QNetwork,
)

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
TWO = spaces.Discrete(2)
ARM = spaces.Box(-2, 2, (4,), np.float32)
SMALL = ModelConfig(hidden=[5])


@settings(max_examples=40)
@given(
    st.sampled_from([QNetwork, ActorCritic]),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([(3,), (2, 3)]),
    st.booleans(),
    st.booleans(),
)
def test_logits_and_values_have_the_leading_dimensions(
    kind, n_features, n_actions, lead, normalize_obs, share_encoder
):
    config = ModelConfig(hidden=[5], normalize_obs=normalize_obs, share_encoder=share_encoder)
    space = spaces.Box(-1, 1, (n_features,), np.float32)
    output = kind(space, spaces.Discrete(n_actions), config)(torch.randn(*lead, n_features))
    assert output["logit"].shape == (*lead, n_actions)
    if kind is ActorCritic:
        assert output["value"].shape == lead


@pytest.mark.parametrize("wrap", [dict, Batch])
def test_observations_may_come_in_a_mapping(wrap):
    model = QNetwork(VECTOR, TWO)
    obs = torch.randn(4, 3)
    assert torch.equal(model(wrap(obs=obs))["logit"], model(obs)["logit"])


def test_a_dict_observation_with_a_key_obs_is_told_from_an_input():
    space = spaces.Dict({"goal": VECTOR, "obs": VECTOR})
    model = QNetwork(space, TWO, SMALL)
    observation = {"goal": torch.randn(4, 3), "obs": torch.randn(4, 3)}
    assert torch.equal(model(observation)["logit"], model({"obs": observation})["logit"])


@pytest.mark.parametrize("action_space", [TWO, ARM])
@pytest.mark.parametrize("options", [{}, {"share_encoder": True}])
def test_the_halves_of_an_actor_critic_are_what_it_gives(action_space, options):
    model = ActorCritic(VECTOR, action_space, ModelConfig(hidden=[5], **options))
    obs = torch.randn(4, 3)
    both = model(obs)
    halves = {**model.actor(obs), **model.critic(obs)}
    assert both.keys() == halves.keys()
    assert all(torch.equal(both[key], halves[key]) for key in both)
    assert "value" not in model.actor(obs)
    assert not model.critic(obs).keys() & {"logit", "mu", "log_std"}


def test_separate_halves_share_no_parameter():
    model = ActorCritic(VECTOR, TWO, SMALL)
    model.critic(torch.randn(4, 3))["value"].sum().backward()
    trained = {name for name, value in model.named_parameters() if value.grad is not None}
    assert trained == {name for name, _ in model.named_parameters() if "critic" in name} | {
        "value_head.weight",
        "value_head.bias",
    }


def test_shared_halves_share_the_encoder():
    separate = ActorCritic(VECTOR, TWO, SMALL)
    shared = ActorCritic(VECTOR, TWO, ModelConfig(hidden=[5], share_encoder=True))
    encoder = sum(value.numel() for value in shared.encoder.parameters())
    count = [sum(value.numel() for value in model.parameters()) for model in (separate, shared)]
    assert count[0] - count[1] == encoder == 3 * 5 + 5
    assert len(shared.state_dict()) == len(list(shared.parameters()))


def test_a_policy_begins_almost_uniform_and_a_value_does_not():
    model = ActorCritic(VECTOR, TWO)
    output = model(torch.randn(100, 3))
    assert output["logit"].abs().max() < 0.05
    assert output["value"].abs().max() > 0.2


def test_continuous_actions_begin_around_zero_with_a_spread_of_one():
    output = ActorCritic(VECTOR, ARM)(torch.randn(6, 3))
    assert output["mu"].shape == output["log_std"].shape == (6, 4)
    assert output["mu"].abs().max() < 0.05
    assert not output["log_std"].any()


def test_the_normaliser_stands_before_both_halves():
    model = ActorCritic(VECTOR, TWO, ModelConfig(hidden=[5], normalize_obs=True))
    plain = ActorCritic(VECTOR, TWO, SMALL)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "normalizer" not in k})
    obs = torch.randn(50, 3) * 5 + 7
    model.normalizer.update(obs)
    normal = (obs - obs.mean(0)) / obs.std(0, correction=0)
    for key, value in model(obs).items():
        torch.testing.assert_close(value, plain(normal)[key], atol=1e-5, rtol=1e-4)


def test_dueling_values_have_the_mean_of_the_state():
    model = QNetwork(VECTOR, spaces.Discrete(3), ModelConfig(dueling=True))
    obs = torch.randn(4, 3)
    value = model.head.value(model.encoder(obs))
    torch.testing.assert_close(model(obs)["logit"].mean(-1, keepdim=True), value)


def test_a_deterministic_actor_stays_between_minus_one_and_one():
    actor = DeterministicActor(VECTOR, ARM, ModelConfig(hidden=[5], orthogonal=False))
    with torch.no_grad():
        actor.head.linear.weight.mul_(100)
    action = actor(torch.randn(50, 3))["action"]
    assert action.shape == (50, 4)
    assert 0.99 < action.abs().max() <= 1


def test_the_spread_of_a_gaussian_actor_is_clamped():
    actor = GaussianActor(VECTOR, ARM, SMALL)
    with torch.no_grad():
        actor.head.linear.weight.mul_(1e5)
    log_std = actor(torch.randn(50, 3))["log_std"]
    assert (log_std.min(), log_std.max()) == (-20, 2)


@pytest.mark.parametrize(
    ("kind", "action_space"),
    [
        (QNetwork, ARM),
        (ActorCritic, spaces.MultiBinary(3)),
        (DeterministicActor, TWO),
        (GaussianActor, TWO),
    ],
)
def test_actions_without_a_head_are_an_error_that_names_the_model(kind, action_space):
    with pytest.raises(ValueError, match=f"{kind.__name__} has no head for actions of"):
        kind(VECTOR, action_space)


def test_images_are_read_by_a_q_network():
    space = spaces.Box(0, 255, (4, 40, 40), np.uint8)
    output = QNetwork(space, TWO)(torch.zeros(2, 4, 40, 40, dtype=torch.uint8))
    assert output["logit"].shape == (2, 2)


def test_an_lstm_needs_a_recurrent_network():
    with pytest.raises(ValueError, match="QNetwork has no LSTM: leave it out"):
        QNetwork(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), ModelConfig(lstm=8))
