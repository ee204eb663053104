import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon import ops
from guerdon.data import Batch
from guerdon.data.demonstrations import Demonstrations
from guerdon.reward import Setting, create_reward_model, make_reward

NAMES = ["gail", "airl", "fairl"]
VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 12, 12), np.uint8)
TWO = spaces.Discrete(2)
ARM = spaces.Box(-1, 1, (2,), np.float32)


def draw(space, shape, generator, shift=0.0):
    if isinstance(space, spaces.Discrete):
        return generator.integers(space.n, size=shape)
    if space.dtype == np.uint8:
        return generator.integers(256, size=(*shape, *space.shape)).astype(np.uint8)
    return (generator.normal(size=(*shape, *space.shape)) + shift).astype(space.dtype)


def transitions(shape, observation_space=VECTOR, action_space=TWO, shift=0.0, seed=0):
    generator = np.random.default_rng(seed)
    terminated = np.zeros(shape, bool)
    terminated[-1] = True
    return Batch(
        obs=draw(observation_space, shape, generator, shift),
        act=draw(action_space, shape, generator),
        rew=np.zeros(shape, np.float32),
        terminated=terminated,
        truncated=np.zeros(shape, bool),
        obs_next=draw(observation_space, shape, generator, shift),
        mask=np.ones(shape, bool),
    )


def experts(observation_space=VECTOR, action_space=TWO, n_rows=60):
    episode = transitions((n_rows,), observation_space, action_space, shift=1.0, seed=9)
    del episode.mask
    return Demonstrations([episode])


def make(name="gail", observation_space=VECTOR, action_space=TWO, **options):
    options.setdefault("gradient_penalty", 0.0)
    if name == "airl":
        options.setdefault("log_prob", False)
    model = create_reward_model({"type": name, "hidden_size": [16], **options})
    model.setup(Setting(observation_space, action_space, n_envs=4, gamma=0.9, seed=1))
    model.load_expert_data(experts(observation_space, action_space))
    return model


def taught(name="gail", rounds=20, **options):
    model = make(name, **options)
    model.collect_data(transitions((30, 4)))
    for _ in range(rounds):
        metrics = model.fit(10)
    return model, metrics


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_to_tell_demonstrations_from_the_policys_transitions(name):
    model, metrics = taught(name)
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
        ({"name": "airl"}, ops.airl_reward),
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
def test_it_takes_vectors_and_images_and_actions_of_both_kinds(
    observation_space, action_space, inputs
):
    model = make("gail", observation_space, action_space, inputs=inputs)
    data = transitions((6, 4), observation_space, action_space)
    model.collect_data(data)
    assert set(model.train()) == {"loss", "expert_accuracy", "policy_accuracy"}
    assert model.estimate(data).rew.shape == (6, 4)


def test_what_a_transition_is_worth_depends_on_nothing_else():
    model, _ = taught(rounds=2)
    data = transitions((8, 4))
    before = copy.deepcopy(data)
    whole = model.estimate(data).rew
    np.testing.assert_array_equal(model.estimate(data).rew, whole)
    rows = [[model.estimate(data[t : t + 1, b : b + 1]).rew[0, 0] for b in range(4)]
            for t in range(8)]  # fmt: skip
    np.testing.assert_allclose(rows, whole, rtol=1e-5)
    for key in data.keys():  # noqa: SIM118 - a batch iterates over rows
        np.testing.assert_array_equal(data[key], before[key])


def test_a_list_of_dictionaries_comes_back_as_one():
    model, data = make(), transitions((5,))
    items = [
        {"obs": torch.tensor(data.obs[i]), "action": torch.tensor(data.act[i]), "reward": 7.0}
        for i in range(5)
    ]
    estimated = model.estimate(items)
    np.testing.assert_allclose(
        [item["reward"] for item in estimated], model.estimate(data).rew, rtol=1e-6
    )
    assert [item["reward"] for item in items] == [7.0] * 5


def test_after_an_end_the_absorbing_state_goes_on_paying():
    model = make(absorbing=True)
    data = transitions((5,))
    plain = data.replace(terminated=np.zeros(5, bool))
    with torch.no_grad():
        forever = float(ops.gail_reward(model.network.logit(model.network.absorbed())))
    difference = model.estimate(data).rew - model.estimate(plain).rew
    np.testing.assert_allclose(difference, [0, 0, 0, 0, forever * 0.9 / (1 - 0.9)], rtol=1e-5)


def test_the_absorbing_state_is_what_tells_episodes_that_end_from_those_that_do_not():
    model, _ = taught(absorbing=True, rounds=30)  # one of 60 demonstrated rows ends, of 4 of 120
    model.expert["terminated"][:] = False
    model.fit(200)
    with torch.no_grad():
        assert model.network.logit(model.network.absorbed()) < -1


@pytest.mark.parametrize(
    "options", [{"gradient_penalty": 10.0}, {"spectral_norm": True}, {"weight_decay": 10.0}]
)
def test_a_regularised_discriminator_is_less_sure(options):
    plain, tamed = taught(rounds=30)[0], taught(rounds=30, **options)[0]
    data = transitions((40,), seed=3)
    sure, less = (model.network(model.tensors(data)).abs().mean() for model in (plain, tamed))
    assert less < 0.8 * sure


def test_airl_takes_the_policys_density_out_of_the_verdict():
    model = create_reward_model({"type": "airl", "hidden_size": [16]})
    assert model.needs_log_prob
    model.setup(
        Setting(VECTOR, TWO, log_prob=lambda _, act: torch.full((len(act),), -0.25), seed=1)
    )
    model.load_expert_data(experts())
    model.collect_data(transitions((30, 4)))
    model.step()
    drawn = model.sample_expert(3), model.sample(2)
    assert model.offset(drawn).tolist() == [0.25] * 5


def test_a_policy_without_a_density_is_refused_by_name():
    reward = make_reward({"type": "airl"})
    with pytest.raises(ValueError, match="'airl' needs to know how likely actions are"):
        reward.setup(Setting(VECTOR, TWO))
    make_reward({"type": "airl", "cotrain": False}).setup(Setting(VECTOR, TWO))


@pytest.mark.parametrize("log_prob", [True, False])
def test_airl_learns_from_the_policy_as_it_is(log_prob):
    model = create_reward_model({"type": "airl", "log_prob": log_prob, "hidden_size": [4]})
    likely = Setting(VECTOR, TWO, on_policy=False, log_prob=lambda _, act: torch.zeros(len(act)))
    model.setup(likely)
    model.load_expert_data(experts())
    model.collect_data(transitions((100, 4)))
    model.train()
    model.clear_data(1)
    assert len(model.memory) == (0 if log_prob else 400)


@pytest.mark.parametrize("name", ["gail", "red", "pdeil", "gcl", "pwil"])
def test_a_number_that_demonstrations_never_change_is_not_blown_up(name):
    shown = experts()
    for part in ("obs", "obs_next"):
        shown.episodes[0][part][:, 1] = 0.5
    model = create_reward_model({"type": name} | ({"horizon": 60} if name == "pwil" else {}))
    model.setup(Setting(VECTOR, TWO, horizon=60, log_prob=lambda _, act: torch.zeros(len(act))))
    model.load_expert_data(shown)
    rows = shown.transitions()
    near = rows.replace(obs=rows.obs + np.float32([0, 1e-3, 0]))
    if name == "red":
        model.pretrain()
    same, other = (np.asarray(model.estimate(each).rew) for each in (rows, near))
    np.testing.assert_allclose(same, other, atol=0.02)


def test_a_model_on_its_own_knows_the_spaces_of_its_demonstrations():
    episode = experts().episodes[0]
    model = create_reward_model({"type": "gail", "hidden_size": [4]})
    model.load_expert_data(Demonstrations([episode], None, VECTOR, spaces.Discrete(5)))
    model.estimate(episode.replace(act=np.full(len(episode), 4)))


def test_it_goes_on_exactly_from_its_state():
    one = make(gradient_penalty=1.0)
    one.collect_data(transitions((10, 4)))
    one.fit(5)
    other = make(gradient_penalty=1.0)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for model in (one, other):
        model.collect_data(transitions((10, 4), seed=4))
        model.train()
    for name, value in one.network.state_dict().items():
        assert torch.equal(value, other.network.state_dict()[name]), name


def test_it_forgets_the_policys_transitions_when_it_is_time_to():
    on_policy, counted = make(), make(clear_buffer_per_iters=3)
    for model in (on_policy, counted):
        model.collect_data(transitions((10, 4)))
        model.clear_data(2)
        assert len(model.memory) == 40  # not before it was trained with them
        model.train()
        model.clear_data(2)
    assert (len(on_policy.memory), len(counted.memory)) == (0, 40)
    counted.clear_data(3)
    assert len(counted.memory) == 0


def test_what_training_waits_for_is_not_forgotten():
    model = create_reward_model(
        {"type": "gail", "hidden_size": [16], "train_every": 50, "clear_buffer_per_iters": 1}
    )
    model.setup(Setting(VECTOR, TWO, n_envs=4, on_policy=False))
    model.load_expert_data(experts())
    for iteration in (1, 2):
        model.collect_data(transitions((10, 4)))
        model.train()
        assert len(model.memory) == 40 * iteration
        model.clear_data(iteration)
    assert len(model.memory) == 0


def test_training_waits_for_enough_that_is_new():
    model = make(train_every=50)
    model.collect_data(transitions((10, 4)))
    assert model.train() is None
    model.collect_data(transitions((10, 4)))
    assert model.train() is not None
    assert model.train() is None


def test_rows_that_are_no_data_are_not_remembered():
    model, data = make(), transitions((10, 4))
    data.mask[3:, 1] = False
    model.collect_data(data)
    assert len(model.memory) == 33


def test_demonstrations_of_another_space_are_refused():
    model = create_reward_model({"type": "gail"})
    model.setup(Setting(spaces.Box(-1, 1, (5,), np.float32), TWO))
    with pytest.raises(ValueError, match="obs of the demonstrations"):
        model.load_expert_data(experts())


def test_without_demonstrations_it_says_which_option_is_missing():
    with pytest.raises(ValueError, match="gail learns from demonstrations: name them in 'expert_"):
        create_reward_model({"type": "gail"}).load_expert_data()


def write(folder, rows):
    """The guide's file of demonstrations, whose actions have an axis of their own."""
    path = folder / "expert.pkl"
    path.write_bytes(pickle.dumps(as_items(rows)))
    return str(path)


def as_items(rows):
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


def test_a_file_and_a_list_of_the_guide_are_read_alike(tmp_path):
    data = transitions((20,))
    data = data.replace(obs=data.obs.astype(float), obs_next=data.obs_next.astype(float))
    model = create_reward_model({"type": "gail", "hidden_size": [8]})
    model.setup(Setting(VECTOR, TWO))
    model.load_expert_data(write(tmp_path, data))
    assert model.expert["obs"].dtype == torch.float32
    assert model.expert["act"].tolist() == data.act.tolist()
    with torch.no_grad():
        expected = model.reward(model.network(model.expert))
    found = [float(item["reward"]) for item in model.estimate(as_items(data))]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("name", [*NAMES, "red", "pdeil"])
def test_the_demonstrations_of_the_config_are_loaded_where_nobody_else_did(name, tmp_path):
    options = {"log_prob": False} if name == "airl" else {"update_per_collect": 3}
    path = write(tmp_path, transitions((20,), shift=1.0))
    model = create_reward_model({"type": name, "expert_data_path": path, **options})
    items = as_items(transitions((300,)))
    model.collect_data(items)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "red hardly tells")
        assert model.train() is not None
    assert len(model.demonstrations.transitions()) == 20
    assert len({float(item["reward"]) for item in model.estimate(items)}) > 100


@pytest.mark.parametrize("name", [*NAMES, "red", "pdeil"])
def test_training_without_any_demonstrations_says_which_option_is_missing(name):
    model = create_reward_model({"type": name})
    model.collect_data(transitions((300,)))
    with pytest.raises(ValueError, match=f"{name} learns from demonstrations: name them in"):
        model.train()


@pytest.mark.parametrize("name", ["gail", "red", "pdeil"])
def test_a_restored_model_reads_no_demonstrations_to_be_asked(name):
    options = {"expert_data_path": "gone.pkl", "hidden_size": [8]}
    models = [create_reward_model({"type": name, **options}) for _ in range(2)]
    for model in models:
        model.setup(Setting(VECTOR, ARM, seed=1))
    models[0].load_expert_data(experts(action_space=ARM))
    models[1].load_state_dict(models[0].state_dict())
    data = transitions((5,), action_space=ARM)
    first, second = (model.estimate(data).rew for model in models)
    np.testing.assert_array_equal(first, second)
    assert models[1].demonstrations is None


def test_airl_on_its_own_says_that_it_needs_a_density():
    model = create_reward_model({"type": "airl"})
    model.load_expert_data(experts())
    model.collect_data(transitions((10, 4)))
    with pytest.raises(ValueError, match="airl needs to know how likely the policy's actions are"):
        model.train()


@pytest.mark.parametrize(
    "obs", [np.ones((3, 4), np.float32), np.ones((3, 3), complex)], ids=["shape", "kind"]
)
def test_next_observations_are_looked_at_too(obs):
    data = transitions((3,))
    with pytest.raises(ValueError, match="obs_next of the demonstrations is"):
        make().load_expert_data(Demonstrations([data.replace(obs_next=obs)]))


def test_numbers_are_no_images():
    model = create_reward_model({"type": "gail"})
    model.setup(Setting(IMAGE, TWO))
    numbers = experts(spaces.Box(0, 1, IMAGE.shape, np.float32))
    with pytest.raises(ValueError, match="obs of the demonstrations is float32, which does not"):
        model.load_expert_data(numbers)


def test_on_its_own_it_finds_out_what_transitions_look_like():
    model = create_reward_model({"type": "gail", "hidden_size": 8})
    model.load_expert_data(experts())
    model.collect_data(transitions((10, 4)))
    assert model.train() is not None
    assert model.estimate(transitions((3,))).rew.shape == (3,)


def test_asking_a_spectrally_normalised_model_does_not_change_it():
    model, _ = taught(spectral_norm=True, rounds=1)
    data = transitions((8, 4))
    before = copy.deepcopy(model.state_dict()["network"])
    np.testing.assert_array_equal(model.estimate(data).rew, model.estimate(data).rew)
    for name, value in model.state_dict()["network"].items():
        assert torch.equal(value, before[name]), name


def test_the_absorbing_state_counts_as_often_as_time_is_spent_in_it():
    model = make(absorbing=True, batch_size=10)  # one of 60 demonstrated transitions is an end
    data = transitions((10, 4))  # and 4 of 40 of the policy's
    model.collect_data(data)
    after = 0.9 / 0.1
    expert, policy = model._weights().split(11)
    for weights, share in ((expert, 1 / 60), (policy, 4 / 40)):
        assert float(weights[-1] / weights[0]) == pytest.approx(10 * share * after)
        assert float(weights.mean()) == pytest.approx(1.0)


def test_time_without_end_needs_a_discount():
    with pytest.raises(ValueError, match="below 1"):
        create_reward_model({"type": "gail", "absorbing": True}).setup(
            Setting(VECTOR, TWO, gamma=1.0)
        )


def test_clipping_would_undo_what_is_paid_for_the_time_after_an_end():
    reward = make_reward({"type": "gail", "absorbing": True, "clip": (-5.0, 5.0)})
    with pytest.raises(ValueError, match="would cut away"):
        reward.setup(Setting(VECTOR, TWO))


def test_off_policy_it_waits_for_more_than_one_transition():
    model = create_reward_model({"type": "gail"})
    assert model.waits_for == 1
    model.setup(Setting(VECTOR, TWO, on_policy=False))
    assert model.waits_for == 256
