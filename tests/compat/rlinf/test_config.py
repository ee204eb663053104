"""The keys of the reward workflow's document mean what guerdon's own do."""

from pathlib import Path

import pytest
import torch
import yaml

from guerdon.compat.layouts import translated_fit
from guerdon.config import ConfigError
from guerdon.entry import compose
from guerdon.training.fit_files import compose_fit

pytestmark = pytest.mark.filterwarnings("ignore:keys without a meaning in guerdon")
STAGE_1 = """
reward:
  group_name: "RewardGroup"
  use_reward_model: False
  collect_data: True
  reward_model:
    image_keys: ["base_camera"]
    image_size: [3, 64, 64]
  data_collection:
    positive_dir: "./reward_data/positive"
    negative_dir: "./reward_data/negative"
    image_keys: ["base_camera"]
    max_positive_trajectories: 500
    max_negative_trajectories: 500
"""
STAGE_3 = """
reward:
  group_name: "RewardGroup"
  use_reward_model: True
  collect_data: False
  reward_model:
    checkpoint_path: "./checkpoints/reward_model.pt"
    image_keys: ["base_camera"]
    image_size: [3, 64, 64]
    hidden_dim: 256
    num_spatial_blocks: 8
    pretrained_encoder_path: "./resnet10_pretrained.pt"
    use_pretrain: True
    freeze_encoder: True
    reward_type: "binary"
"""
REST = "env: {id: guerdon/Reach-v0}\npolicy: {type: ppo}\n"
USE = "reward.use_reward_model=true"
AT = "reward.reward_model.checkpoint_path=X"
BY_ENV = "eval.select_by=env"


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "config.yaml"
        path.write_text(REST + text)
        return path

    return write


def classifier_of(config):
    assert list(config.reward.terms) == ["classifier"]
    return config.reward.terms["classifier"]


# --- overrides


@pytest.mark.parametrize("use", [USE, "reward.use_reward_model=True", f"++{USE}"])
def test_the_documents_overrides_choose_the_classifier(use):
    ours = compose("reach_ppo", ["reward=classifier", "reward.checkpoint_path=X", BY_ENV])
    theirs = compose("reach_ppo", [use, AT])
    assert theirs == ours
    assert theirs.reward.checkpoint_path == "X"
    assert theirs.run.name == "reach_ppo_classifier"
    assert compose("reach_ppo", [AT, use]) == ours


def test_all_of_the_models_options_can_be_overridden():
    config = compose("reach_ppo", [USE, AT, "reward.reward_model.threshold=0.7",
                                   "reward.reward_model.reward_type=continuous",
                                   "reward.reward_model.freeze_encoder=true"])  # fmt: skip
    assert classifier_of(config)["threshold"] == 0.7
    assert classifier_of(config)["reward_type"] == "continuous"


def test_where_the_model_is_not_used_its_options_mean_nothing():
    plain = compose("reach_ppo", ["reward.collect_data=True", BY_ENV])
    off = ["reward.collect_data=True", "reward.use_reward_model=False", AT]
    assert compose("reach_ppo", off) == plain
    assert list(plain.reward.terms) == ["env"]


def test_the_last_word_counts():
    assert classifier_of(compose("reach_ppo", ["reward.use_reward_model=false", AT, USE]))
    off = compose("reach_ppo", [USE, AT, "reward.use_reward_model=false"])
    assert list(off.reward.terms) == ["env"]


def test_options_that_nobody_would_read_are_an_error():
    with pytest.raises(
        ConfigError, match=r"it is not clear whether it is used: set 'reward.use_reward_"
    ):
        compose("reach_ppo", [AT])


@pytest.mark.parametrize("word", ["yes", "1", "maybe", ""])
def test_whether_it_is_used_is_true_or_false(word):
    with pytest.raises(ConfigError, match=rf"'reward.use_reward_model' is '{word}': set it to tr"):
        compose("reach_ppo", [f"reward.use_reward_model={word}", AT])


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("thresold=0.5", "threshold"), ("checkpoint_pat=X", "checkpoint_path"), ("helo=2", "hold")],
)
def test_an_unknown_option_names_the_nearest(wrong, right):
    key = wrong.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"unknown key 'reward.*{key}'.*'?{right}"):
        compose("reach_ppo", [USE, AT, f"reward.reward_model.{wrong}"])


# --- files


def test_the_first_stage_of_the_document_collects(file):
    config = compose(file(STAGE_1))
    assert list(config.reward.terms) == ["env"]
    assert config.reward.collect_data
    assert config.reward.data_collection.positive_dir == "./reward_data/positive"
    assert config.reward.data_collection.max_negative_trajectories == 500
    assert config.reward.checkpoint_path is None


def test_the_third_stage_of_the_document_learns_from_the_model(file):
    config = compose(file(STAGE_3))
    model = classifier_of(config)
    assert config.reward.checkpoint_path == "./checkpoints/reward_model.pt"
    assert not config.reward.collect_data
    assert not config.reward.cotrain
    assert model["image_keys"] == ["base_camera"]
    assert tuple(model["image_size"]) == (3, 64, 64)
    assert model["hidden_dim"] == 256
    assert model["num_spatial_blocks"] == 8
    assert model["reward_type"] == "binary"
    assert not {"freeze_encoder", "use_pretrain", "group_name"} & model.keys()


def test_its_keys_select_by_the_environments_return_and_names_what_it_ignores(file):
    with pytest.warns(UserWarning, match=r"are ignored: reward.group_name, .*freeze_encoder"):
        config = compose(file(STAGE_3))
    assert config.eval.select_by == "env"
    for source in (yaml.safe_load(REST), "reach_ppo"):
        assert compose(source, [USE, AT]).eval.select_by == "env"
        assert compose(source, [USE, AT, "eval.select_by=reward"]).eval.select_by == "reward"


def test_a_mapping_is_read_as_the_file_is(file):
    values = yaml.safe_load(REST + STAGE_3)
    assert compose(values) == compose(file(STAGE_3))
    assert values == yaml.safe_load(REST + STAGE_3), "what was given stays as it is"


def test_one_file_serves_both_stages(file):
    """The document runs all stages with one file, and overrides."""
    path = file(STAGE_1)
    config = compose(path, ["reward.use_reward_model=True", "reward.collect_data=False", AT])
    assert classifier_of(config)["image_keys"] == ["base_camera"]
    assert config.reward.checkpoint_path == "X"
    assert not config.reward.collect_data
    config = compose(file(STAGE_3), ["reward.use_reward_model=False", "reward.collect_data=True"])
    assert list(config.reward.terms) == ["env"]
    assert config.reward.checkpoint_path is None


def test_an_override_changes_the_model_that_a_file_uses(file):
    config = compose(file(STAGE_3), [AT, "reward.reward_model.threshold=0.9"])
    assert config.reward.checkpoint_path == "X"
    assert classifier_of(config)["threshold"] == 0.9
    assert classifier_of(config)["hidden_dim"] == 256


def test_a_file_that_does_not_say_whether_it_uses_its_model_is_an_error(file):
    text = "reward: {reward_model: {checkpoint_path: X}}\n"
    with pytest.raises(ConfigError, match=r"it is not clear whether it is used"):
        compose(file(text))
    assert classifier_of(compose(file(text), [USE]))


@pytest.mark.parametrize("word", ["sometimes", 2, None])
def test_a_file_says_true_or_false(word, file):
    text = yaml.safe_dump({"reward": {"use_reward_model": word, "reward_model": {}}})
    with pytest.raises(ConfigError, match=r"'reward.use_reward_model' is .*: set it to true or"):
        compose(file(text))


def test_options_of_the_model_are_a_mapping(file):
    with pytest.raises(ConfigError, match=r"'reward.reward_model' is 'X': it should be a mapping"):
        compose(file("reward: {use_reward_model: true, reward_model: X}\n"))


def test_a_composed_config_reads_back(file, tmp_path):
    from guerdon.config import to_yaml

    config = compose(file(STAGE_3))
    (tmp_path / "again.yaml").write_text(to_yaml(config))
    assert compose(tmp_path / "again.yaml") == config


def test_where_workers_are_put_means_nothing_anywhere(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("env: reach\npolicy: ppo\nreward:\n  type: env\n  group_name: RewardGroup\n")
    assert list(compose(file).reward.terms) == ["env"]


def test_no_limit_can_be_written_in_two_ways():
    for word in ("None", "null"):
        limit = f"reward.data_collection.max_positive_trajectories={word}"
        folder = "reward.data_collection.positive_dir=None_yet"
        config = compose("reach_ppo", [limit, folder, "reward.collect_data=true"])
        assert config.reward.data_collection.max_positive_trajectories is None
        assert Path(config.reward.data_collection.positive_dir).name == "None_yet"


# --- the placement

PLACEMENT = {"actor,rollout": "0-1", "env": "0-1,3 , 5", "reward": "0-3:0-7"}


@pytest.mark.parametrize("used", [True, False])
def test_a_placement_chooses_numbers_of_workers_on_ray(used):
    source = {
        "env": "reach", "policy": "ppo", "reward": {"use_reward_model": used},
        "cluster": {"num_nodes": 1, "component_placement": PLACEMENT}, "runtime": {"type": "ray"},
    }  # fmt: skip
    overrides = ["reward.reward_model.checkpoint_path=fitted"] if used else []
    section = compose(source, overrides).runtime
    assert (section.num_learners, section.num_collectors) == (2, 4)
    assert section.num_reward_workers == (8 if used else 0)
    assert compose(source, [*overrides, "runtime.num_collectors=8"]).runtime.num_collectors == 8
    source["runtime"]["num_collectors"] = 16
    assert compose(source, overrides).runtime.num_collectors == 16
    source["runtime"] = "ray"
    assert compose(source, overrides).runtime.num_learners == 2
    other = [*overrides, "cluster.component_placement.env=7"]
    assert compose(source, other).runtime.num_collectors == 2  # that of "rollout"


def test_a_placement_on_all_gpus_has_a_worker_on_each_node():
    named = ["runtime=ray", "cluster.num_nodes=4", "cluster.component_placement.env=all"]
    number = max(torch.cuda.device_count(), 1) * 4
    assert compose("reach_ppo", named).runtime.num_collectors == number


def test_a_placement_has_no_effect_in_one_process():
    with pytest.warns(UserWarning, match=r"are ignored: cluster.component_placement$"):
        config = compose("reach_ppo", ["cluster.component_placement.reward=all"])
    assert config.runtime.num_reward_workers == 0


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        ({"critic": "0"}, "places 'critic': use actor, env, rollout, reward"),
        ({"env": "3-1"}, "component_placement.env' is '3-1': give ranks as in 0-3, or all"),
        ({"env": "gpu"}, "is 'gpu': give ranks"),
        ("all", "is 'all': give ranks by component"),
        (None, "'cluster.num_nodes' is 'two': give a number"),
    ],
)
def test_a_placement_that_cannot_be_read_is_named(placement, said):
    cluster = {"component_placement": placement, "num_nodes": "two" if placement is None else 2}
    source = {"env": "reach", "policy": "ppo", "cluster": cluster, "runtime": {"type": "ray"}}
    with pytest.raises(ConfigError, match=said):
        compose(source)


# --- the fit


def test_keys_of_a_fit_that_place_workers_are_named_and_ignored(tmp_path):
    file = tmp_path / "train_reward_model.yaml"
    file.write_text(
        "defaults:\n  - override hydra/job_logging: stdout\ncluster: {num_nodes: 1}\n"
        "reward: {group_name: G, num_epochs: 7, data: {num_workers: 4, positive_dir: p}}\n"
    )
    with pytest.warns(UserWarning, match=r"are ignored: defaults, cluster, .*num_workers$"):
        values, overrides = translated_fit(file, ["reward.data.num_workers=2", "seed=3"])
    assert values == {"reward": {"num_epochs": 7, "data": {"positive_dir": "p"}}}
    assert overrides == ["seed=3"]
    with pytest.warns(UserWarning, match=r"are ignored: cluster.num_nodes$"):
        assert translated_fit("reach_classifier", ["cluster.num_nodes=2"]) == (
            "reach_classifier",
            [],
        )


def test_keys_of_a_fit_with_another_name_are_renamed():
    values, overrides = translated_fit(
        {
            "runner": {"task_type": "embodied", "output_dir": "x"},
            "reward": {
                "training_backend": "simple",
                "gpu_id": None,
                "optim": {"optimizer": "adamw", "lr": 1e-3},
                "data": {"image_key": "wrist"},
            },
        },
        ["+reward.optim.optimizer=adam", "seed=3"],
    )
    assert values == {
        "runner": {"output_dir": "x"},
        "reward": {
            "optim": {"lr": 1e-3},
            "data": {},
            "model": {"image_keys": ["wrist"]},
        },
    }
    assert overrides == ["seed=3"]
    _, (cameras,) = translated_fit(None, ["reward.data.image_key=wrist"])
    assert compose_fit(None, [cameras]).reward.model.image_keys == ["wrist"]


@pytest.mark.parametrize("n_gpus", [0, 2])
def test_the_gpu_of_a_fit_is_its_device(n_gpus, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: n_gpus)
    source = {"reward": {"gpu_id": 1}}
    if n_gpus:
        assert translated_fit(source) == ({"reward": {}, "device": "cuda:1"}, [])
        assert translated_fit(None, ["reward.gpu_id=0"])[1] == ["device='cuda:0'"]
        assert translated_fit({**source, "device": "cpu"})[0]["device"] == "cpu"
    else:
        with pytest.warns(UserWarning, match=r"reward\.gpu_id \(torch finds no such GPU: fitting"):
            assert translated_fit(source) == ({"reward": {}}, [])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("reward.optim.optimizer=sgd", "'reward.optim.optimizer' is 'sgd': use adam or adamw"),
        ("reward.training_backend=fsdp", "'reward.training_backend' is 'fsdp': use simple"),
        ("reward.gpu_id=all", "'reward.gpu_id' is 'all': give the number of a GPU"),
    ],
)
def test_what_a_fit_cannot_do_is_an_error(override, message):
    with pytest.raises(ConfigError, match=message):
        translated_fit(None, [override])


def test_cameras_of_a_fit_are_not_named_in_two_ways():
    reward = {"data": {"image_key": "wrist"}, "model": {"image_keys": ["front"]}}
    with pytest.raises(ConfigError, match=r"'reward.data.image_key' and .* have different cameras"):
        translated_fit({"reward": reward})
    reward["model"]["image_keys"] = ["wrist"]
    assert translated_fit({"reward": reward})[0]["reward"]["data"] == {}
