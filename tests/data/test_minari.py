import gymnasium
import minari
import numpy as np
import pytest
from gymnasium import spaces

from guerdon import extras
from guerdon.data import Batch, Demonstrations, load_demonstrations
from guerdon.data.minari import from_minari, to_minari

EpisodeBuffer = minari.data_collector.EpisodeBuffer

FULL = {
    "algorithm_name": "random",
    "author": "a",
    "author_email": "a@b.c",
    "code_permalink": "https://example.org",
    "description": "random actions",
}


@pytest.fixture(autouse=True)
def datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return tmp_path / "datasets"


def play(env_id, seeds, limit=12):
    """Plays random actions; the observations have one row more than the rest."""
    env = gymnasium.make(env_id)
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        env.action_space.seed(seed)
        observations, steps = [observation], []
        while not steps or not (steps[-1][2] or steps[-1][3]):
            action = env.action_space.sample()
            observation, reward, terminated, truncated, _ = env.step(action)
            truncated = truncated or (len(steps) + 1 == limit and not terminated)
            observations.append(observation)
            steps.append((action, reward, terminated, truncated))
        yield seed, np.array(observations), *map(np.array, zip(*steps, strict=True))
    env.close()


def cartpole(dataset_id="cartpole/random-v0", **more):
    buffers = [
        EpisodeBuffer(
            seed=seed,
            observations=observations,
            actions=actions,
            rewards=rewards,
            terminations=terminated,
            truncations=truncated,
            **{key: value(len(observations)) for key, value in more.items()},
        )
        for seed, observations, actions, rewards, terminated, truncated in play(
            "CartPole-v1", [3, 4, 5]
        )
    ]
    return minari.create_dataset_from_buffers(
        dataset_id, buffers, env="CartPole-v1", eval_env="CartPole-v1", **FULL
    )


def test_a_dataset_is_read():
    data = from_minari(cartpole())
    assert data.env_id == "CartPole-v1"
    assert data.seeds == [3, 4, 5]
    assert data.action_space == spaces.Discrete(2)
    assert data.observation_space.shape == (4,)
    for batch, (_, observations, actions, rewards, terminated, truncated) in zip(
        data.episodes, play("CartPole-v1", [3, 4, 5]), strict=True
    ):
        assert set(batch.keys()) == {"obs", "act", "rew", "terminated", "truncated", "obs_next"}
        assert np.array_equal(batch.obs, observations[:-1])
        assert np.array_equal(batch.obs_next, observations[1:])
        assert batch.obs.dtype == np.float32
        assert np.array_equal(batch.act, actions)
        assert np.array_equal(batch.rew, rewards)
        assert np.array_equal(batch.terminated, terminated)
        assert np.array_equal(batch.truncated, truncated)
        assert batch.terminated[-1] or batch.truncated[-1]


def test_every_way_to_name_a_dataset(datasets):
    dataset = cartpole()
    data = from_minari(dataset)
    folder = datasets / "cartpole" / "random-v0"
    for source in (dataset, "minari:cartpole/random-v0", folder, str(folder), folder / "data"):
        assert load_demonstrations(source).episodes == data.episodes


def test_a_part_of_a_dataset_keeps_its_seeds():
    part = cartpole().filter_episodes(lambda episode: episode.id != 1)
    data = from_minari(part)
    assert data.seeds == [3, 5]
    whole = from_minari(cartpole("other-v0"))
    assert data.episodes == [whole.episodes[0], whole.episodes[2]]


def test_infos_are_those_of_the_steps():
    dataset = cartpole(
        infos=lambda rows: {
            "time": np.arange(rows),
            "more": {"name": [f"step {i}" for i in range(rows)]},
        }
    )
    data = from_minari(dataset)
    info = data.episodes[0].info
    assert info.time.tolist() == list(range(1, data.lengths[0] + 1))
    assert info.more.name[0] == "step 1"
    again = from_minari(to_minari(data, "again-v0"))
    assert again.episodes == data.episodes


def test_seeds_may_be_missing():
    data = from_minari(cartpole())
    data = Demonstrations(
        data.episodes, None, data.observation_space, data.action_space, [None, 2**63 + 1, 0]
    )
    again = from_minari(to_minari(data, "seeds-v0"))
    assert again.seeds == [None, 2**63 + 1, 0]
    assert again.env_id is None


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Nobody/Knows-v7", None])
def test_there_and_back(env_id):
    data = from_minari(cartpole())
    data = Demonstrations(
        data.episodes, env_id, data.observation_space, data.action_space, data.seeds
    )
    dataset = to_minari(data, "there/back-v1", **FULL)
    assert isinstance(dataset, minari.MinariDataset)
    assert dataset.total_steps == data.lengths.sum()
    assert dataset.storage.metadata["algorithm_name"] == "random"
    again = from_minari(minari.load_dataset("there/back-v1"))
    assert again.episodes == data.episodes
    assert again.seeds == data.seeds
    assert again.env_id == env_id
    assert again.observation_space == data.observation_space
    assert again.action_space == data.action_space
    if env_id == "CartPole-v1":
        assert dataset.recover_environment().spec.id == env_id


def test_nested_spaces_there_and_back():
    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (36, 36, 3), np.uint8),
        inner=spaces.Dict(x=spaces.Box(-1, 1, (2,)), n=spaces.Discrete(5, start=1)),
        pair=spaces.Tuple([spaces.MultiBinary(3), spaces.Text(8, charset="abc")]),
    )
    action_space = spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1, 1, (2,)))
    for space in (observation_space, action_space):
        space.seed(0)

    def rows(samples):
        if isinstance(samples[0], dict):
            return Batch({key: rows([sample[key] for sample in samples]) for key in samples[0]})
        if isinstance(samples[0], tuple):
            return Batch({str(i): rows(part) for i, part in enumerate(zip(*samples, strict=True))})
        return np.array(samples, dtype=object if isinstance(samples[0], str) else None)

    observations = rows([observation_space.sample() for _ in range(5)])
    batch = Batch(
        obs=observations[:-1],
        act=rows([action_space.sample() for _ in range(4)]),
        rew=np.arange(4.0),
        terminated=np.zeros(4, bool),
        truncated=np.arange(4) == 3,
        obs_next=observations[1:],
    )
    data = Demonstrations([batch], None, observation_space, action_space, [1])
    again = from_minari(to_minari(data, "nested-v0"))
    assert again.episodes == data.episodes
    assert again.observation_space == observation_space


@pytest.mark.filterwarnings("ignore:.*None")
def test_numbers_get_the_type_of_their_space():
    buffer = EpisodeBuffer(
        observations=np.array([[0.1, 0.2], [0.3, 0.4]]),
        actions=[1],
        rewards=[1.0],
        terminations=[True],
        truncations=[False],
    )
    given = {"observation_space": spaces.Box(-1, 1, (2,)), "action_space": spaces.Discrete(2)}
    dataset = minari.create_dataset_from_buffers("floats-v0", [buffer], **given)
    assert dataset[0].observations.dtype == np.float64
    (batch,) = from_minari(dataset).episodes
    assert batch.obs.dtype == np.float32
    assert batch.obs.tolist() == np.array([[0.1, 0.2]], "f4").tolist()


def test_what_minari_cannot_hold():
    data = from_minari(cartpole())
    with pytest.raises(ValueError, match="set observation_space and action_space"):
        to_minari(Demonstrations(data.episodes), "x-v0")
    given = {"observation_space": data.observation_space, "action_space": data.action_space}
    batch = data.episodes[0][:]
    batch.obs_next = batch.obs_next + 1
    with pytest.raises(ValueError, match="episode 0 has next observations"):
        to_minari(Demonstrations([batch], **given), "x-v0")
    batch = data.episodes[0][:]
    batch.info = Batch(note=np.array([None] * len(batch), dtype=object))
    with pytest.raises(ValueError, match=r"info\.note of episode 0 is neither numeric nor text"):
        to_minari(Demonstrations([batch], **given), "x-v0")


def test_what_is_missing_is_said(monkeypatch):
    with pytest.raises(FileNotFoundError, match="minari download nobody/has-v0"):
        load_demonstrations("minari:nobody/has-v0")
    with pytest.raises(TypeError, match="cannot be read from a int"):
        load_demonstrations(3)

    def missing(_name):
        raise ModuleNotFoundError(name="minari")

    monkeypatch.setattr(extras.importlib, "import_module", missing)
    with pytest.raises(extras.MissingExtraError, match=r"--editable \S+\[minari\]"):
        load_demonstrations("minari:nobody/has-v0")
