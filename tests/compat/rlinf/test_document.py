"""The workflow of RLinf's document: its files as printed, its commands, classes and checkpoints."""

# ruff: noqa: E501, RUF043 - lines of the document; messages

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from guerdon.compat.layouts import translated_fit
from guerdon.compat.rlinf.checkpoint import as_fit, as_safetensors, write_checkpoints
from guerdon.compat.rlinf.main import train_embodied_agent
from guerdon.config import ConfigError
from guerdon.data.frames import load_frames, read_trajectory
from guerdon.data.unpickle import UnsafePickleError, load_weights
from guerdon.entry import compose
from guerdon.nn import classifier
from guerdon.training.fit_files import compose_fit, load_classifier
from tests.compat.rlinf.test_config import STAGE_1
from tests.compat.snippets import run
from tests.training.staging import BOTH

ROOT = Path(__file__).parents[3]
EMBODIMENT = ROOT / "examples" / "embodiment"
pytestmark = [
    pytest.mark.filterwarnings("ignore:keys without a meaning in guerdon"),
    pytest.mark.filterwarnings("ignore:the encoder of the classifier has no pretrained"),
]

# --- the files as they are printed


def test_the_file_of_the_fit_composes_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source, changes = translated_fit(
        EMBODIMENT / "config" / "train_reward_model.yaml",
        ["reward.gpu_id=1", "reward.global_batch_size=64", "reward.num_epochs=50",
         "reward.save_interval=500"],
    )  # fmt: skip
    section = compose_fit(source, changes).reward
    assert section.save_dir == "../results/reward-model-training/checkpoints"
    assert (section.global_batch_size, section.num_epochs, section.save_interval) == (64, 50, 500)
    assert (section.model.hidden_dim, section.model.num_spatial_blocks) == (256, 8)
    assert (section.optim.lr, section.optim.clip_grad) == (1e-4, 1.0)
    assert section.data.positive_dir == "./reward_data/positive"
    assert not section.model.freeze_encoder, "random features would not learn"


def test_an_encoder_without_weights_is_not_frozen():
    model = {"use_pretrain": True, "freeze_encoder": True, "pretrained_encoder_path": None}
    with pytest.warns(UserWarning, match="so that it is trained, too: set 'reward.model.pretr"):
        values, _ = translated_fit({"reward": {"model": model}})
    assert "freeze_encoder" not in values["reward"]["model"]
    values, changes = translated_fit(
        {"reward": {"model": model}}, ["reward.model.freeze_encoder=false"]
    )
    assert changes == []
    assert values["reward"]["model"]["use_pretrain"] is True
    ours = {"reward": {"model": {"freeze_encoder": True}}}  # without RLinf's key, an error
    with pytest.raises(ConfigError, match="features of a random encoder would not learn"):
        compose_fit(*translated_fit(ours))


@pytest.mark.parametrize(
    ("overrides", "terms"),
    [
        (["reward.collect_data=True", "reward.use_reward_model=False"], ["env"]),
        (["reward.use_reward_model=True", "reward.collect_data=False"], ["classifier"]),
    ],
)
def test_the_file_of_the_policy_composes_for_both_stages(overrides, terms):
    config = compose(EMBODIMENT / "config" / "maniskill_ppo_cnn.yaml", overrides)
    assert config.env.id == "PickCube-v1"
    assert list(config.reward.terms) == terms
    assert config.policy["model"]["keys"] == ["state", "base_camera"]
    assert config.eval.select_by == "env"
    if terms == ["env"]:
        assert config.reward.data_collection.format == "npy"
    else:
        assert config.reward.checkpoint_path == "./checkpoints/reward_model.pt"


def test_keys_that_place_workers_are_ignored():
    config = compose({"env": "reach", "policy": "ppo", "cluster": {"num_nodes": 1}, "hydra": {}})
    assert config.env.id == "guerdon/Reach-v0"


# --- the commands

REACH = f"""
env: reach
policy: {{type: ppo, model: {{keys: [state], normalize_obs: false}}}}
{STAGE_1}"""
SMALL = ("reward.model.width=4", "reward.model.hidden_dim=16", "reward.num_epochs=1",
         "reward.data.max_frames=100", "reward.save_dir=fitted")  # fmt: skip


def bash(folder, script, *arguments):
    """Runs a script in a folder, as a user does; returns what it prints."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        ["bash", f"examples/embodiment/{script}", *arguments],
        cwd=folder, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def workflow(tmp_path_factory):
    """A folder after the first two commands of the document."""
    folder = tmp_path_factory.mktemp("workflow")
    shutil.copytree(EMBODIMENT, folder / "examples" / "embodiment")
    (folder / "examples/embodiment/config/reach_ppo_cnn.yaml").write_text(REACH)
    bash(
        folder, "run_embodiment.sh", "reach_ppo_cnn", "reward.collect_data=True",
        "reward.use_reward_model=False", *BOTH, "run.max_steps=1_600", "run.dir=collected",
    )  # fmt: skip
    said = bash(
        folder, "train_reward_model.sh", "train_reward_model",
        "reward.data.positive_dir=./reward_data/positive",
        "reward.data.negative_dir=./reward_data/negative", *SMALL,
    )  # fmt: skip
    assert "label" in said
    return folder


def test_images_are_files_of_the_documented_format(workflow):
    data = workflow / "reward_data"
    names = sorted(path.name for path in (data / "negative").iterdir())
    assert names[:2] == ["000000.npy", "000001.npy"]
    content = np.load(data / "negative" / names[0], allow_pickle=True).item()
    assert content["images"]["base_camera"].dtype == content["labels"].dtype == np.float32
    assert content["images"]["base_camera"].shape == (50, 3, 64, 64)
    assert content["labels"].shape == (50,)
    assert 0 <= content["images"]["base_camera"].min() < content["images"]["base_camera"].max() <= 1
    frames = load_frames(data / "positive", data / "negative", ["base_camera"])
    assert len(frames) == 1_600


def test_the_third_command_learns_from_the_file_of_the_second(workflow, tmp_path, monkeypatch):
    (step,) = (workflow / "fitted").glob("step_*")
    assert (step / "checkpoint.pt").is_file()
    (tmp_path / "checkpoints").mkdir()
    shutil.copy(step / "checkpoint.pt", tmp_path / "checkpoints" / "reward_model.pt")
    monkeypatch.chdir(tmp_path)
    arguments = [
        "--config-path", str(workflow / "examples/embodiment/config/"),
        "--config-name", "reach_ppo_cnn",
        "reward.use_reward_model=True", "reward.collect_data=False",
        'reward.reward_model.checkpoint_path="./checkpoints/reward_model.pt"',
    ]  # fmt: skip
    limits = ["reward.min_precision=0", "reward.min_recall=0"]
    result = train_embodied_agent([*arguments, *BOTH, *limits, "run.max_steps=800", "run.dir=run"])
    assert list(result.reward.terms) == ["classifier"]
    assert "eval_model_success_rate" in result.summary
    (members, meta), (ours, known) = (
        load_classifier(path) for path in ("checkpoints/reward_model_guerdon", step)
    )
    assert all(map(torch.equal, members[0].state_dict().values(), ours[0].state_dict().values()))
    assert meta["threshold"] == known["threshold"]
    assert as_fit(step / "checkpoint.pt") == step
    with pytest.raises(ValueError, match=r"has a (precision|recall) of"):  # its quality is known
        train_embodied_agent([*arguments, *BOTH, "run.max_steps=800", "run.dir=other"])


# --- classes

WORKER = """
    from rlinf.workers.reward.reward_worker import RewardWorker

    worker = RewardWorker(cfg)
    worker.init()
    rewards = worker.compute_rewards(images)
"""


@pytest.mark.parametrize("reward_type", ["binary", "continuous"])
def test_a_worker_rewards_images(workflow, reward_type):
    frames = load_frames(
        workflow / "reward_data/positive", workflow / "reward_data/negative", ["base_camera"]
    )
    images = frames.images["base_camera"][:6]
    options = {"checkpoint_path": str(workflow / "fitted"), "image_keys": ["base_camera"],
               "reward_type": reward_type}  # fmt: skip
    cfg = {"runner": {"task_type": "embodied"}, "reward": {"reward_model": options}}
    left = run(WORKER, cfg=cfg, images=images)
    members, meta = load_classifier(workflow / "fitted")
    with torch.no_grad():
        logits = members[0]({"base_camera": torch.from_numpy(images)})
    expected = torch.sigmoid(logits / meta["temperature"])
    if reward_type == "binary":
        expected = (expected >= meta["threshold"]).float()
    torch.testing.assert_close(left["rewards"], expected)
    by_camera = left["worker"].compute_rewards({"obs": {"base_camera": images}})
    torch.testing.assert_close(by_camera, expected)


@pytest.mark.parametrize(
    ("cfg", "kind"),
    [
        ({"runner": {"task_type": "embodied"}}, "embodied"),
        ({"runner": {"task_type": "reasoning"}, "env": {}}, "text"),
        ({"env": {"train": {}}}, "embodied"),
        ({"reward": {"reward_model": {"image_size": [3, 64, 64]}}}, "embodied"),
        ({"reward": {"reward_type": "math"}}, "text"),
        ({}, "text"),
    ],
)
def test_the_kind_of_task_is_found_in_the_config(cfg, kind):
    names = run("from rlinf.workers.reward.reward_worker import RewardWorker")
    assert names["RewardWorker"](cfg).task_type == kind


def test_text_is_rewarded_by_rules():
    names = run("from rlinf.workers.reward.reward_worker import RewardWorker")
    responses = [
        "<think>2 + 2</think> <answer>4</answer>",
        "it is \\boxed{4}",
        "4 ",
        "<think>no</think><answer>5</answer>",
    ]
    answers = ["4"] * 4
    worker = names["RewardWorker"]({"runner": {"task_type": "reasoning"}})
    worker.init()
    assert worker.compute_rewards(responses, answers).tolist() == [1, 1, 1, 0]
    both = {"rules": {"exact_match": 1.0, "format": 0.5}}
    worker = names["RewardWorker"]({"reward": both})
    worker.init()
    assert worker.compute_rewards(responses, answers).tolist() == [1.5, 1, 1, 0.5]
    worker = names["RewardWorker"]({"reward": {"rules": {"format": 1.0}, "format": r"\d\s*"}})
    worker.init()
    assert worker.compute_rewards(responses).tolist() == [0, 0, 1, 0]
    with pytest.raises(ValueError, match="'reward.rules' has 'math': use exact_match and format"):
        names["RewardWorker"]({"reward": {"rules": {"math": 1}}}).init()
    with pytest.raises(ValueError, match="there are no reward models for text"):
        names["RewardWorker"]({"reward": {"use_reward_model": True}}).init()


COLLECTOR = """
    from rlinf.models.reward_model.reward_data_collector import RewardDataCollector

    collector = RewardDataCollector(cfg, 'data/positive', 'data/negative', ['base_camera'])
"""


def test_the_collector_sorts_episodes_of_parallel_environments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    collector = run(COLLECTOR, cfg=None)["collector"]
    images = np.zeros((3, 8, 8, 3), np.uint8)
    images[1] = 200
    for step in range(2):
        output = {
            "obs": {"base_camera": images}, "success_frame": [0.0, float(step == 0), 0.0],
            "dones": np.array([step == 1, step == 1, False]),
        }  # fmt: skip
        collector.add_env_output(output, {"success_once": [False, True, False]}, False)
    collector.flush()
    assert collector.counts == (1, 1)
    collector.save_trajectory(2)
    collector.close()
    assert collector.counts == (1, 2)
    positive = read_trajectory(tmp_path / "data/positive/000000.npy")
    assert positive.labels.tolist() == [1, 0]
    assert (positive.images["base_camera"] == 200).all()
    taken = collector._extract_image(images, key_offset=1)
    assert taken.shape == (3, 8, 8)
    assert taken.max() == pytest.approx(200 / 255)


CLASSIFIER = """
    from rlinf.models.reward_model.reward_classifier import BinaryRewardClassifier, ResNetEncoderWrapper

    model = BinaryRewardClassifier(["base_camera"], [3, 64, 64], hidden_dim=16, num_spatial_blocks=2)
    encoder = ResNetEncoderWrapper(images, out_dim=16, num_spatial_blocks=2)
    logits, features = model({"base_camera": images}), encoder(images)
"""


def test_the_classifier_has_the_documented_shapes():
    left = run(CLASSIFIER, images=torch.rand(2, 3, 64, 64))
    assert left["logits"].shape == (2, 1)
    assert left["features"].shape == (2, 16)
    assert left["model"](torch.rand(3, 64, 64)).shape == (1, 1)
    assert isinstance(left["model"], classifier.BinaryRewardClassifier)


# --- checkpoints of RLinf


class Block(nn.Module):
    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.GroupNorm(4, n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.GroupNorm(4, n_out)
        self.downsample = None
        if stride != 1:
            conv = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.GroupNorm(4, n_out))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """The names of torchvision's."""

    def __init__(self, width=8):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.GroupNorm(4, width)
        self.layer1 = nn.Sequential(Block(width, width, 1))
        for number in (2, 3, 4):
            n_in = width * 2 ** (number - 2)
            setattr(self, f"layer{number}", nn.Sequential(Block(n_in, 2 * n_in, 2)))
        self.fc = nn.Linear(8 * width, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


class Pooling(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(*shape))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.resnet_backbone = ResNet()
        self.pooling_layer = Pooling(64, 2, 2, 3)
        self.mlp = nn.Sequential(nn.Linear(64 * 3, 16), nn.LayerNorm(16), nn.Tanh())

    def forward(self, x):
        features = self.resnet_backbone(x)[..., None] * self.pooling_layer.kernel
        return self.mlp(features.sum((2, 3)).flatten(1))


class Foreign(nn.Module):
    """RLinf's classifier: pixels in [0, 1], one encoder for each camera."""

    def __init__(self, cameras=("front", "wrist")):
        super().__init__()
        self.encoders = nn.ModuleDict({camera: Encoder() for camera in cameras})
        self.classifier = nn.Sequential(
            nn.Linear(16 * len(cameras), 16), nn.Dropout(0.1), nn.LayerNorm(16), nn.ReLU(),
            nn.Linear(16, 1),
        )  # fmt: skip

    def forward(self, images):
        features = [encoder(images[camera]) for camera, encoder in self.encoders.items()]
        return self.classifier(torch.cat(features, -1)).squeeze(-1)


@pytest.mark.parametrize("wrapped", ["model_state_dict", "state_dict", None])
def test_a_checkpoint_of_rlinf_gives_the_same_logits(wrapped, tmp_path):
    torch.manual_seed(0)
    theirs = Foreign().eval()
    state = theirs.state_dict()
    torch.save({wrapped: state, "epoch": 3} if wrapped else state, tmp_path / "reward_model.pt")
    with pytest.warns(UserWarning, match="precision and recall of the classifier in .* are not kn"):
        folder = as_fit(tmp_path / "reward_model.pt", (3, 64, 64))
    (ours,), meta = load_classifier(folder)
    images = {camera: torch.rand(4, 3, 64, 64) for camera in ("front", "wrist")}
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images))
    assert meta["threshold"] == 0.5
    assert meta["model"]["image_keys"] == ["front", "wrist"]
    pixels = {key: (part * 255).byte() for key, part in images.items()}
    with torch.no_grad():
        torch.testing.assert_close(ours(pixels), theirs({k: v / 255 for k, v in pixels.items()}))


@pytest.mark.filterwarnings("ignore:the precision and recall")
def test_a_checkpoint_of_unknown_quality_is_used_as_the_document_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model_state_dict": Foreign(["base_camera"]).state_dict()}, "reward_model.pt")
    Path("reach.yaml").write_text(REACH)
    result = train_embodied_agent(
        ["--config-path", ".", "--config-name", "reach.yaml", "reward.use_reward_model=True",
         "reward.collect_data=False", "reward.reward_model.checkpoint_path=reward_model.pt",
         *BOTH, "run.max_steps=800", "run.dir=run"]
    )  # fmt: skip
    assert result.summary["env_steps"] == 800
    model = result.reward.models[0]
    assert not model.meta["model"]["normalize"]


@pytest.mark.parametrize("given", ["file", "default"])
def test_a_pretrained_encoder_of_torchvision_is_loaded(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network = ResNet(64)
    torch.save(network.state_dict(), "resnet10_pretrained.pt")
    path = "resnet10_pretrained.pt" if given == "file" else None
    model = {"use_pretrain": True, "freeze_encoder": True, "pretrained_encoder_path": path}
    config = compose_fit(*translated_fit({"reward": {"model": model}})).reward.model
    assert config.freeze_encoder
    made = classifier.BinaryRewardClassifier(config)
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(made.encoders[0](images), network(images))
    assert not any(value.requires_grad for value in made.encoders.parameters())
    assert as_safetensors("other.safetensors") == "other.safetensors"


class Evil:
    def __reduce__(self):
        return os.mkdir, ("was_run",)


def test_a_file_cannot_run_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model_state_dict": Evil()}, "evil.pt")
    for read in (as_fit, as_safetensors, load_weights):
        with pytest.raises(UnsafePickleError, match=r"evil.pt asks for posix.mkdir, which guerdon"):
            read("evil.pt")
    assert not Path("was_run").exists()
    Path("torn.pt").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(ValueError, match=r"torn.pt is not a file of torch.save, or damaged"):
        as_fit("torn.pt")
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: 'nothing.pt'"):
        as_fit("nothing.pt")
    for content, message in (
        ([1, 2], "it holds list"),
        ({"a": torch.ones(1)}, "has no weights of a BinaryRewardClassifier"),
    ):
        torch.save(content, "other.pt")
        with pytest.raises(ValueError, match=message):
            as_fit("other.pt")
    torch.save({"layer9.0.conv1.weight": torch.ones(1)}, "other.pt")
    with pytest.raises(ValueError, match=r"'layer9.0.conv1.weight', which a ResNet-10 has not"):
        as_safetensors("other.pt")


def test_every_checkpoint_of_a_fit_is_also_a_file(workflow, tmp_path):
    shutil.copytree(workflow / "fitted", tmp_path / "fitted")
    for file in (tmp_path / "fitted").rglob("checkpoint.pt"):
        file.unlink()
    write_checkpoints(tmp_path / "fitted")
    (file,) = (tmp_path / "fitted").rglob("checkpoint.pt")
    content = load_weights(file)
    assert content["global_step"] == int(file.parent.name.removeprefix("step_"))
    assert load_classifier(tmp_path / "fitted")[1]["threshold"] == content["guerdon"]["threshold"]
