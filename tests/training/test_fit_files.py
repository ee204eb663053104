"""Config of a fit: presets, files of the document, overrides, and errors."""

from pathlib import Path

import pytest

from guerdon.compat.layouts import translated_fit
from guerdon.config.errors import ConfigError
from guerdon.config.sources import options
from guerdon.training.fit_files import FitConfig, compose_fit

DOCUMENT = """
defaults:
  - override hydra/job_logging: stdout

cluster:
  num_nodes: 1
  component_placement:
    reward: all

runner:
  task_type: embodied
  output_dir: ../results
  experiment_name: reward-model-training

reward:
  group_name: "RewardGroup"
  training_backend: simple
  gpu_id: 0
  global_batch_size: 32
  num_epochs: 100
  log_interval: 100
  save_interval: 1000
  save_dir: ${runner.output_dir}/${runner.experiment_name}/checkpoints
  model:
    image_keys: ["base_camera"]
    image_size: [3, 64, 64]
    hidden_dim: 256
    num_spatial_blocks: 8
    pretrained_encoder_path: null
    use_pretrain: true
    freeze_encoder: true
  optim:
    optimizer: adam
    lr: 1e-4
    clip_grad: 1.0
  data:
    positive_dir: ./reward_data/positive
    negative_dir: ./reward_data/negative
    image_key: base_camera
    num_workers: 4
"""


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "train_reward_model.yaml"
    path.write_text(DOCUMENT)
    with (
        pytest.warns(UserWarning, match=r"are ignored: defaults, cluster, reward\.group_name"),
        pytest.warns(UserWarning, match="the encoder of the classifier has no pretrained weights"),
    ):
        return translated_fit(path)[0]


def test_the_file_of_the_document_means_what_it_says(document):
    reward = compose_fit(document).reward
    assert reward.save_dir == "../results/reward-model-training/checkpoints"
    assert (reward.global_batch_size, reward.num_epochs, reward.log_interval) == (32, 100, 100)
    assert (reward.optim.lr, reward.optim.clip_grad) == (1e-4, 1.0)
    assert reward.model.use_pretrain is True
    assert reward.model.image_keys == ["base_camera"]


def test_random_features_are_not_frozen(document):
    assert not compose_fit(document).reward.model.freeze_encoder
    with pytest.raises(ConfigError, match=r"set reward\.model\.freeze_encoder=false or name rewar"):
        compose_fit(document, ["reward.model.freeze_encoder=true"])


def test_what_the_document_leaves_out_is_as_it_has_it(document):
    config = compose_fit(document).reward
    plain = FitConfig().reward
    for section in ("model", "optim", "lr_sched", "data"):
        said, default = getattr(config, section), getattr(plain, section)
        changed = {key for key, value in said if value != getattr(default, key)}
        assert changed <= {"use_pretrain", "lr"}  # guerdon's default encoder is narrower


@pytest.mark.parametrize("name", options("fit"))
def test_every_preset_composes_with_a_folder_of_its_own(name):
    config = compose_fit(name, ["seed=3"])
    assert Path(config.reward.save_dir).name == name
    assert config.seed == 3


def test_there_is_a_preset_for_each_task_on_the_table():
    assert {"reach_classifier", "push_classifier"} <= set(options("fit"))


def test_overrides_reach_every_key():
    config = compose_fit(
        {"reward": {"num_epochs": 3}},
        [
            "reward.optim.lr=3e-4",
            "reward.model.image_keys=[front,wrist]",
            "+reward.data.max_frames=10",
            "reward.save_dir=out[1]/{x",
            "runner.experiment_name=7",
            "reward.data.positive_dir=${runner.experiment_name}/good",
        ],
    )
    assert config.reward.optim.lr == 3e-4
    assert config.reward.model.image_keys == ["front", "wrist"]
    assert config.reward.data.max_frames == 10
    assert config.reward.save_dir == "out[1]/{x"
    assert config.reward.data.positive_dir == "7/good"
    assert config.reward.num_epochs == 3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["reward.optim.learning_rte=1"], "unknown key 'reward.optim.learning_rte'"),
        (["reward.modle.width=4"], "unknown key 'reward.modle': did you mean 'model'"),
        (["reward.optim.lr=0"], "'reward.optim.lr' is 0: it should be greater than 0"),
        (["reward.model.image_size=[64,64]"], "'reward.model.image_size' is"),
        (["device=gpu"], "'device' is 'gpu'"),
        (["reward.save_dir=${nothing}/x"], "cannot be composed"),
        (["~reward"], "not of the form key=value"),
        (["reward.data.num_workers=4"], "unknown key 'reward.data.num_workers'"),
        (["reward=3"], "'reward' is 3: it should be a mapping"),
        (["seed.more=3"], "'seed' is {'more': 3}"),
    ],
)
def test_errors_name_the_key(overrides, message):
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        compose_fit(None, overrides)


def test_an_unknown_preset_is_met_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'reach_classifier'"):
        compose_fit("reach_clasifier")


@pytest.mark.parametrize(
    ("option", "needed", "reason"),
    [
        ("lr_sched.min_lr=1e-5", "lr_sched.type=constant", "'reward.lr_sched.type' is constant"),
        ("data.augment=false", "model.freeze_encoder=true", "'reward.model.freeze_encoder' is Tr"),
    ],
)
def test_an_option_that_nothing_reads_is_refused(option, needed, reason):
    encoder = "reward.model.pretrained_encoder_path=e.safetensors"
    given = [encoder, f"reward.{option}"]
    key = option.partition("=")[0]
    with pytest.raises(ConfigError, match=f"^'reward.{key}' has no effect, since {reason}"):
        compose_fit(None, [*given, f"reward.{needed}"])
    assert compose_fit(None, [encoder, f"reward.{needed}"])
    assert compose_fit(None, [*given, "reward.lr_sched.type=cosine"])
