import copy
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon import ops
from guerdon.data.batch import Batch
from guerdon.data.demonstrations import Demonstrations
from guerdon.reward import Setting, create_reward_model, make_reward
from tests.reward.experts import ARM, IMAGE, TWO, VECTOR, as_items, demonstrations
from tests.reward.experts import transitions as rows_that_do_not_end
from tests.rounding import assert_close

NAMES = ["gail", "airl", "fairl"]


def transitions(*args, **options):
    """Transitions that end in their last row."""
    rows = rows_that_do_not_end(*args, **options)
    rows.terminated[-1] = True
    return rows


def experts(observation_space=VECTOR, action_space=TWO):
    return demonstrations(
        transitions((60,), observation_space, action_space, seed=9, shift=1.0),
        observation_space=observation_space,
        action_space=action_space,
    )


def create(name="gail", setting=None, **options):
    setting = setting or Setting(VECTOR, TWO, n_envs=4, gamma=0.9, seed=1)
    return create_reward_model({"type": name, "hidden_size": [16], **options}, setting)


def make(name="gail", observation_space=VECTOR, action_space=TWO, **options):
    options = {"gradient_penalty": 0.0} | options
    if name == "airl":
        options.setdefault("log_prob", False)
    setting = Setting(observation_space, action_space, n_envs=4, gamma=0.9, seed=1)
    model = create(name, setting, **options)
    model.load_expert_data(experts(observation_space, action_space))
    return model


def trained(name="gail", rounds=20, **options):
    model = make(name, **options)
    model.collect_data(transitions((30, 4)))
    for _ in range(rounds):
        metrics = model.fit(10)
    return model, metrics


@pytest.mark.parametrize("name", NAMES)
def test_the_discriminator_separates_demonstrations_from_the_policys_transitions(name):
    model, metrics = trained(name)
    assert metrics["expert_accuracy"] > 0.75
    assert metrics["policy_accuracy"] > 0.75
    logits = [
        model.network(model.tensors(data)).mean()
        for data in (experts().transitions(), transitions((40,), seed=3))
    ]
    assert logits[0] > logits[1] + 0.5


@pytest.mark.parametrize(
    ("options", "form"),
    [
        ({"name": "gail"}, ops.gail_reward),
        ({"name": "gail", "form": "log_d"}, ops.log_d_reward),
        ({"name": "gail", "form": "balanced"}, ops.balanced_reward),
        ({"name": "airl", "shaping": False}, ops.airl_reward),
        ({"name": "fairl", "limit": 3.0}, lambda logit: ops.fairl_reward(logit, 3.0)),
    ],
)
def test_the_reward_is_a_function_of_the_logit(options, form):
    model, data = make(**options), transitions((5,))
    with torch.no_grad():
        expected = form(model.network(model.tensors(data)))
    np.testing.assert_array_equal(model.estimate(data).rew, expected.numpy())


@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
@pytest.mark.parametrize("observation_space", [VECTOR, IMAGE], ids=["vectors", "images"])
@pytest.mark.parametrize("inputs", [["obs"], ["obs", "act"], ["obs", "act", "obs_next"]])
def test_spaces_and_inputs(observation_space, action_space, inputs):
    model = make("gail", observation_space, action_space, inputs=inputs)
    data = transitions((6, 4), observation_space, action_space)
    model.collect_data(data)
    assert set(model.train()) == {"loss", "expert_accuracy", "policy_accuracy"}
    assert model.estimate(data).rew.shape == (6, 4)


def test_the_score_of_a_transition_depends_on_nothing_else():
    model, _ = trained(rounds=2)
    data = transitions((8, 4))
    before = copy.deepcopy(data)
    whole = model.estimate(data).rew
    np.testing.assert_array_equal(model.estimate(data).rew, whole)
    rows = [[model.estimate(data[t : t + 1, b : b + 1]).rew[0, 0] for b in range(4)]
            for t in range(8)]  # fmt: skip
    assert_close(rows, whole)
    assert data == before


def test_estimate_returns_a_list_for_a_list():
    model, data = make(), transitions((5,))
    items = as_items(data)
    estimated = [item["reward"] for item in model.estimate(items)]
    assert_close(estimated, model.estimate(data).rew)
    assert [item["reward"] for item in items] == [7.0] * 5


# --- absorbing states


def test_an_end_is_rewarded_with_the_value_of_the_absorbing_state():
    model = make(absorbing=True)
    data = transitions((5,))
    plain = data.replace(terminated=np.zeros(5, bool))
    with torch.no_grad():
        forever = float(ops.gail_reward(model.network.output(model.network.absorbed())))
    difference = model.estimate(data).rew - model.estimate(plain).rew
    assert_close(difference, [0, 0, 0, 0, forever * 0.9 / (1 - 0.9)])


def test_the_absorbing_state_is_the_policys_if_demonstrations_never_end():
    episode = experts().episodes[0]
    endless = episode.replace(terminated=np.zeros(60, bool))
    model = make(absorbing=True)
    model.load_expert_data(Demonstrations([endless]))
    model.collect_data(transitions((30, 4)))
    model.fit(500)
    with torch.no_grad():
        assert model.network.output(model.network.absorbed()) < -1


@pytest.mark.parametrize("subsample", [1, 7])
def test_the_absorbing_state_is_weighted_by_the_discounted_time_in_it(subsample):
    # One of 60 demonstrated transitions is an end, whether it is in the sample or not.
    model = make(absorbing=True, batch_size=10, subsample=subsample)
    assert bool(model.expert["terminated"].any()) == (subsample == 1)
    model.collect_data(transitions((10, 4)))  # and 4 of 40 of the policy's
    after = 0.9 / 0.1
    expert, policy = model._weights().split(11)
    for weights, share in ((expert, 1 / 60), (policy, 4 / 40)):
        assert float(weights[-1] / weights[0]) == pytest.approx(10 * share * after)
        assert float(weights.mean()) == pytest.approx(1.0)


def test_absorbing_states_need_a_discount():
    with pytest.raises(ValueError, match="below 1"):
        create(setting=Setting(VECTOR, TWO, gamma=1.0), absorbing=True)


def test_absorbing_states_cannot_be_clipped():
    with pytest.raises(ValueError, match="would clip the absorbing-state value"):
        make_reward({"type": "gail", "absorbing": True, "clip": (-5.0, 5.0)}, Setting(VECTOR, TWO))


# --- regularisation


@pytest.mark.parametrize(
    "options", [{"gradient_penalty": 10.0}, {"spectral_norm": True}, {"weight_decay": 10.0}]
)
def test_a_regularised_discriminator_has_smaller_logits(options):
    plain, regularised = trained(rounds=30)[0], trained(rounds=30, **options)[0]
    rows = plain.tensors(transitions((40,), seed=3))
    assert regularised.network(rows).abs().mean() < 0.8 * plain.network(rows).abs().mean()


def test_scoring_does_not_change_a_spectrally_normalised_model():
    model, _ = trained(spectral_norm=True, rounds=1)
    data = transitions((8, 4))
    before = copy.deepcopy(model.training_state()["network"])
    np.testing.assert_array_equal(model.estimate(data).rew, model.estimate(data).rew)
    for name, value in model.training_state()["network"].items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("name", ["gail", "red", "pdeil", "gcl", "pwil"])
def test_constant_observations_of_demonstrations_are_not_scaled_up(name):
    shown = experts()
    for part in ("obs", "obs_next"):
        shown.episodes[0][part][:, 1] = 0.5
    setting = Setting(VECTOR, TWO, horizon=60, log_prob=lambda _, act: torch.zeros(len(act)))
    options = {"horizon": 60} if name == "pwil" else {}
    model = create_reward_model({"type": name, **options}, setting)
    model.load_expert_data(shown)
    rows = shown.transitions()
    near = rows.replace(obs=rows.obs + np.float32([0, 1e-3, 0]))
    if name == "red":
        model.pretrain()
    same, other = (np.asarray(model.estimate(each).rew) for each in (rows, near))
    np.testing.assert_allclose(same, other, atol=0.02)


# --- AIRL


def likely(value, **options):
    """The setting of a policy under which all actions have one log-probability."""
    return Setting(
        VECTOR, TWO, log_prob=lambda _, act: torch.full((len(act),), value), seed=1, **options
    )


def test_airl_subtracts_the_log_probability_from_the_logit():
    model = create("airl", likely(-0.25), shaping=False)
    model.load_expert_data(experts())
    model.collect_data(transitions((30, 4)))
    model.step()
    drawn = model.sample_expert(3), model.sample(2)
    assert model.offset(drawn).tolist() == [0.25] * 5


def airl_by_hand(**options):
    """A model with g(s) = s0 and h(s) = s1, and transitions whose second one ends."""
    setting = Setting(VECTOR, TWO, gamma=0.5, **options)
    model = create("airl", setting, hidden_size=[], log_prob="log_prob" in options)
    for network, place in ((model.network, 0), (model.network.potential, 1)):
        layer = network.layers[-1]
        with torch.no_grad():
            layer.weight.zero_()
            layer.bias.zero_()
            layer.weight[0, place] = 1.0
    data = transitions((2,))
    data.obs[:, :2] = [[0.5, 0.25], [1.0, -0.5]]
    data.obs_next[:, :2] = [[0.0, 1.0], [0.0, 7.0]]
    return model, data


def test_airl_shapes_its_reward_by_a_potential():
    model, data = airl_by_hand()
    # f = g(s) + gamma h(s') - h(s): 0.5 + 0.5 * 1 - 0.25, and 1 + 0.5 after an end.
    assert_close(model.estimate(data).rew, [0.75, 1.5])
    assert_close(model.network(model.tensors(data)).detach(), [0.75, 1.5])
    assert_close(model.network.reward(model.tensors(data)).detach(), [0.5, 1.0])


@pytest.mark.parametrize(
    ("slope", "expected"),
    [
        # f = 3 s0 + 0.5 slope s1' - slope s1, without the second term after an end.
        (3.0, [(3 - 1) ** 2 + (math.sqrt(1.5**2 + 3**2) - 1) ** 2, (3 - 1) ** 2 + (3 - 1) ** 2]),
        (0.5, [(3 - 1) ** 2, (3 - 1) ** 2]),
    ],
)
def test_the_gradient_penalty_of_airl_is_of_g_and_of_both_potentials(slope, expected):
    model, data = airl_by_hand()
    with torch.no_grad():
        model.network.layers[-1].weight *= 3.0
        model.network.potential.layers[-1].weight *= slope
    going_on, ended = (model.network.features(model.tensors(data[[i, i]])) for i in (0, 1))
    penalty = [model._penalty(rows, rows).item() for rows in (going_on, ended)]
    assert_close(penalty, expected, rtol=1e-5)
    between = model._penalty(going_on, ended).item()
    assert expected[1] <= between <= expected[0]


def test_the_reward_of_airl_is_the_whole_logit_and_g_when_it_is_frozen():
    def log_prob(_, act):
        return -0.5 - act.float()

    model, data = airl_by_hand(log_prob=log_prob)
    data.act[:] = [0, 1]
    assert_close(model.estimate(data).rew, [0.75 + 0.5, 1.5 + 1.5])
    grid = data[:, None].replace()  # [T, B]
    assert_close(model.estimate(grid).rew, [[1.25], [3.0]])
    model, _ = airl_by_hand(log_prob=log_prob, frozen=True)
    assert_close(model.estimate(data).rew, [0.5, 1.0])


def test_the_potential_of_airl_learns_and_is_saved():
    model, _ = trained("airl", rounds=2)
    assert model.network.potential is not None
    before = make("airl").network.potential.state_dict()
    after = model.network.potential.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert any(name.startswith("potential.") for name in model.training_state()["network"])


def test_the_log_probability_is_subtracted_beside_absorbing_states():
    options = {"absorbing": True, "shaping": False}
    likely_one, sure = (create("airl", likely(value), **options) for value in (-2.0, 0.0))
    batch = transitions((24,))
    for model in (likely_one, sure):
        model.load_expert_data(experts())
    difference = likely_one.estimate(batch).rew - sure.estimate(batch).rew
    assert_close(difference, 2.0)
    read = Batch({name: batch[name] for name in sure.fields}).to_device(torch.device("cpu"))
    assert_close(sure.score(read), sure.estimate(batch).rew)


def test_the_potential_of_an_absorbing_state_is_refused():
    with pytest.raises(ValueError, match="the potential of an absorbing state is unknown"):
        create("airl", absorbing=True)


def test_airl_refuses_a_policy_without_a_density():
    setting = Setting(VECTOR, TWO)
    with pytest.raises(ValueError, match="'airl' needs the log-probability of actions"):
        make_reward({"type": "airl"}, setting)
    make_reward({"type": "airl", "cotrain": False}, setting)
    make_reward({"type": "airl", "log_prob": False}, setting)


@pytest.mark.parametrize("log_prob", [True, False])
def test_airl_trains_on_data_of_the_current_policy(log_prob):
    model = create("airl", likely(0.0, on_policy=False), log_prob=log_prob)
    model.load_expert_data(experts())
    model.collect_data(transitions((100, 4)))
    model.train()
    model.clear_data(1)
    assert len(model.memory) == (0 if log_prob else 400)


def test_airl_outside_a_run_needs_a_log_prob():
    model = create("airl", Setting.of(experts()))
    model.load_expert_data(experts())
    model.collect_data(transitions((10, 4)))
    with pytest.raises(ValueError, match="airl needs the log-probability of the policy's actions"):
        model.train()


# --- data


def test_a_resumed_model_trains_exactly_as_the_first():
    one, other = make(gradient_penalty=1.0), make(gradient_penalty=1.0)
    one.collect_data(transitions((10, 4)))
    one.fit(5)
    other.load_training_state(copy.deepcopy(one.training_state()))
    for model in (one, other):
        model.collect_data(transitions((10, 4), seed=4))
        model.train()
    for name, value in one.network.state_dict().items():
        assert torch.equal(value, other.network.state_dict()[name]), name


def test_another_run_starts_without_the_policys_transitions():
    model, _ = trained(rounds=1)
    other = make()
    other.load_training_state(model.portable_state())
    assert (len(model.memory), len(other.memory)) == (120, 0)
    data = transitions((5,))
    np.testing.assert_array_equal(model.estimate(data).rew, other.estimate(data).rew)
    assert other.fitted


def test_the_policys_transitions_are_dropped_on_schedule():
    on_policy, counted = make(), make(clear_buffer_per_iters=3)
    for model in (on_policy, counted):
        model.collect_data(transitions((10, 4)))
        model.clear_data(2)
        assert len(model.memory) == 40  # not before it was trained on them
        model.train()
        model.clear_data(2)
    assert (len(on_policy.memory), len(counted.memory)) == (0, 40)
    counted.clear_data(3)
    assert len(counted.memory) == 0


def test_transitions_that_training_waits_for_are_not_dropped():
    setting = Setting(VECTOR, TWO, n_envs=4, on_policy=False)
    model = create(setting=setting, train_every=50, clear_buffer_per_iters=1)
    model.load_expert_data(experts())
    for iteration in (1, 2):
        model.collect_data(transitions((10, 4)))
        model.train()
        assert len(model.memory) == 40 * iteration
        model.clear_data(iteration)
    assert len(model.memory) == 0


def test_training_waits_for_enough_new_transitions():
    model = make(train_every=50)
    model.collect_data(transitions((10, 4)))
    assert model.train() is None
    model.collect_data(transitions((10, 4)))
    assert model.train() is not None
    assert model.train() is None


def test_by_default_training_waits_if_the_policy_is_off_policy():
    assert create().train_every == 1
    assert create(setting=Setting(VECTOR, TWO, on_policy=False)).train_every == 256


def test_masked_rows_are_not_kept():
    model, data = make(), transitions((10, 4))
    data.mask[3:, 1] = False
    model.collect_data(data)
    assert len(model.memory) == 33


# --- demonstrations


def test_demonstrations_of_another_space_are_refused():
    model = create(setting=Setting(spaces.Box(-1, 1, (5,), np.float32), TWO))
    with pytest.raises(ValueError, match="obs of the demonstrations"):
        model.load_expert_data(experts())


def test_demonstrations_of_numbers_are_refused_for_images():
    numbers = experts(spaces.Box(0, 1, IMAGE.shape, np.float32))
    with pytest.raises(ValueError, match="obs of the demonstrations is float32, which does not"):
        create(setting=Setting(IMAGE, TWO)).load_expert_data(numbers)


@pytest.mark.parametrize(
    "obs", [np.ones((3, 4), np.float32), np.ones((3, 3), complex)], ids=["shape", "kind"]
)
def test_next_observations_are_checked_too(obs):
    data = demonstrations(transitions((3,)).replace(obs_next=obs))
    with pytest.raises(ValueError, match="obs_next of the demonstrations is"):
        make().load_expert_data(data)


def test_missing_demonstrations_are_asked_for_by_option():
    with pytest.raises(ValueError, match="gail learns from demonstrations: set 'expert_"):
        create().load_expert_data()


def guide_items(rows):
    """Transitions as in DI-engine's guide: tensors, with an axis for single numbers."""
    return [
        {
            "obs": torch.from_numpy(rows.obs[i]),
            "action": torch.tensor([rows.act[i]]),
            "next_obs": torch.from_numpy(rows.obs_next[i]),
            "reward": torch.tensor([0.0]),
            "done": bool(rows.terminated[i]),
        }
        for i in range(len(rows.rew))
    ]


def write(folder, rows):
    path = folder / "expert.pkl"
    path.write_bytes(pickle.dumps(guide_items(rows)))
    return str(path)


def test_a_file_and_a_list_of_the_guide_are_read_alike(tmp_path):
    data = transitions((20,))
    data = data.replace(obs=data.obs.astype(float), obs_next=data.obs_next.astype(float))
    model = create()
    model.load_expert_data(write(tmp_path, data))
    assert model.expert["obs"].dtype == torch.float32
    assert model.expert["act"].tolist() == data.act.tolist()
    with torch.no_grad():
        expected = model.reward(model.network(model.expert))
    found = [float(item["reward"]) for item in model.estimate(guide_items(data))]
    assert_close(found, expected)


@pytest.mark.parametrize("name", [*NAMES, "red", "pdeil"])
def test_training_loads_the_demonstrations_of_the_config(name, tmp_path):
    options = {"log_prob": False} if name == "airl" else {"update_per_collect": 3}
    path = write(tmp_path, transitions((20,), shift=1.0))
    model = create(name, expert_data_path=path, **options)
    data = transitions((300,))
    model.collect_data(data)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "red: ")
        assert model.train() is not None
    assert len(model.demonstrations.transitions()) == 20
    assert len({float(item["reward"]) for item in model.estimate(guide_items(data))}) > 100


@pytest.mark.parametrize("name", [*NAMES, "red", "pdeil"])
def test_training_without_demonstrations_asks_for_them_by_option(name):
    model = create(name)
    model.collect_data(transitions((300,)))
    with pytest.raises(ValueError, match=f"{name} learns from demonstrations: set"):
        model.train()


@pytest.mark.parametrize("name", ["gail", "red", "pdeil"])
def test_a_restored_model_scores_without_demonstrations(name):
    setting = Setting(VECTOR, ARM, seed=1)
    options = {"type": name, "expert_data_path": "gone.pkl"}
    models = [create_reward_model(options, setting) for _ in range(2)]
    models[0].load_expert_data(experts(action_space=ARM))
    models[1].load_training_state(models[0].training_state())
    data = transitions((5,), action_space=ARM)
    first, second = (model.estimate(data).rew for model in models)
    np.testing.assert_array_equal(first, second)
    assert models[1].demonstrations is None


# --- outside a run


def test_outside_a_run_the_spaces_are_those_of_the_demonstrations():
    episode = experts().episodes[0]
    shown = Demonstrations([episode], None, VECTOR, spaces.Discrete(5))
    model = create(setting=Setting.of(shown), hidden_size=8)
    model.load_expert_data(shown)
    model.estimate(episode.replace(act=np.full(len(episode), 4)))
    model.collect_data(transitions((10, 4)))
    assert model.train() is not None
    assert model.estimate(transitions((3,))).rew.shape == (3,)


def test_without_spaces_it_says_how_to_give_them():
    with pytest.raises(ValueError, match=r"needs the spaces .* Setting\.of\(demonstrations\)"):
        create_reward_model({"type": "gail"})
