"""A lamp with a camera, classifiers of its brightness, and fits on disk."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from torch import nn

from guerdon.data import Batch
from guerdon.data.frames import Trajectory, load_frames, write_trajectory
from guerdon.nn.classifier import BinaryRewardClassifier, ClassifierConfig
from guerdon.nn.init import seeded
from guerdon.reward import Setting
from guerdon.reward.success_classifier import ClassifierReward
from guerdon.training.checkpoints import save_checkpoint

SIZE = 16
ID = "tests/Lamp-v0"
RESETS_LATER = "tests/LampResetsLater-v0"
BRIGHT = 150


class Lamp(gymnasium.Env[Any, Any]):
    """Brighter with every large action, and it flickers; bright is a success.

    The first pixel of its picture is how bright it is.

    Args:
        continuous: Whether actions are numbers, or one of two.
        parts: Whether the picture comes with the brightness as a number, or alone.
        lie: What it says of reward and success is drawn from this seed; the truth if None.
        length: Steps of an episode.
        tells: Whether it says what is a success.
    """

    def __init__(
        self,
        continuous: bool = True,
        parts: bool = True,
        lie: int | None = None,
        length: int = 8,
        tells: bool = True,
    ) -> None:
        picture = spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        number = spaces.Box(0, 1, (1,), np.float32)
        both = spaces.Dict({"state": number, "base_camera": picture})
        self.observation_space = both if parts else picture
        self.action_space = spaces.Box(-1, 1, (1,)) if continuous else spaces.Discrete(2)
        self._parts, self._length, self._tells = parts, length, tells
        self._lies = None if lie is None else np.random.default_rng(lie)
        self._level = self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._level, self._steps = int(self.np_random.integers(0, 100)), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        up = float(np.asarray(action).ravel()[0]) * 40 + self.np_random.normal() * 40
        self._level = int(np.clip(self._level + up, 0, 255))
        self._steps += 1
        success = self._level >= BRIGHT if self._lies is None else self._lies.random() < 0.5
        paid = float(success) if self._lies is None else self._lies.normal() * 100
        over = self._steps >= self._length
        info = {"success": bool(success)} if self._tells else {}
        return self._seen(), paid, False, over, info

    @staticmethod
    def picture(level: int) -> np.ndarray:
        """What the camera sees."""
        picture = np.zeros((SIZE, SIZE, 3), np.uint8)
        picture[: 1 + level // 16] = level // 2
        picture[0, 0, 0] = level
        return picture

    def _seen(self) -> Any:
        picture = self.picture(self._level)
        if not self._parts:
            return picture
        return {"state": np.array([self._level / 255], np.float32), "base_camera": picture}


def lamps_that_reset_later(num_envs: int, **options: Any) -> SyncVectorEnv:
    """Gymnasium's own vector: an environment that ended is reset by its next step."""
    return SyncVectorEnv([lambda: Lamp(**options)] * num_envs)


gymnasium.register(ID, Lamp)
gymnasium.register(RESETS_LATER, Lamp, vector_entry_point=lamps_that_reset_later)


class FirstPixel(nn.Module):
    """Its probability of success is a function of the first pixel over 255.

    Attributes:
        frames: Number of frames of each call.
    """

    def __init__(self, function: Any = lambda value: value, key: str = "base_camera") -> None:
        super().__init__()
        self.function, self.key = function, key
        self.unused = nn.Parameter(torch.zeros(1))  # an optimizer needs one
        self.frames: list[int] = []

    def forward(self, images: Any) -> torch.Tensor:
        self.frames.append(len(images[self.key]))
        return torch.logit(self.function(images[self.key][:, 0, 0, 0].double() / 255))


def meta_of(**changes: Any) -> dict[str, Any]:
    """Metadata of a fit; other changes than its keys are those of the network's config."""
    model = {"image_size": [3, SIZE, SIZE], "width": 4, "hidden_dim": 8, "num_spatial_blocks": 2}
    known = {
        "threshold": 0.5, "temperature": 1.0, "target_fpr": 0.01, "validation": {},
        "data": {"positive_dir": "nowhere", "negative_dir": "nowhere"}, "seed": 0, "split": 0.2,
        "held_out": said_of((1.0, 1), (0.0, 1)),
    }  # fmt: skip
    said = {key: changes.pop(key) for key in known if key in changes}
    found = {"model": ClassifierConfig(**{**model, **changes}).model_dump(), **known, **said}
    found["data"] = {"digests": digests_of(found["data"]), **found["data"]}
    return found


def said_of(*frames: tuple[Any, int]) -> dict[str, Any]:
    """Held-out predictions of a fit, from probabilities by member and their number of frames.

    The first half of the arguments are successes.
    """
    said = np.repeat([np.ravel(probability) for probability, _ in frames],
                     [number for _, number in frames], axis=0)  # fmt: skip
    half = sum(number for _, number in frames[: len(frames) // 2])
    logits = np.log(said.T.clip(1e-6, 1 - 1e-6) / (1 - said.T.clip(1e-6, 1 - 1e-6)))
    return {"logits": logits.astype(np.float32), "labels": np.arange(len(said)) < half}


def reader(
    *members: nn.Module,
    meta: dict[str, Any] | None = None,
    setting: Setting | None = None,
    **options: Any,
) -> Any:
    """A reward of classifiers whose predictions are known."""
    model = ClassifierReward(options, setting)
    model.members = list(members) or [FirstPixel()]  # type: ignore[arg-type]
    model.meta = meta or meta_of()
    return model


def refitted(model: Any, function: Any) -> FirstPixel:
    """Make it reject successes for which a function of the first pixel is low."""
    refit = model._start_refit()
    refit.network, refit.trained = FirstPixel(function), 1
    return refit.network  # type: ignore[no-any-return]


def loaded(saved: dict[str, Any], setting: Setting | None = None, **options: Any) -> Any:
    """A reward of saved classifiers."""
    model = ClassifierReward(options, setting)
    model.load_training_state(saved)
    return model


def weights(number: int = 1, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """The part ``classifier`` of a checkpoint, with random weights.

    Unless the threshold is given, half of the images of a lamp pass it.
    """
    meta = meta_of(**changes)
    with seeded(seed):
        members = [
            BinaryRewardClassifier(ClassifierConfig(**meta["model"])).eval() for _ in range(number)
        ]
    saved = {"members": [dict(member.state_dict()) for member in members], "meta": meta}
    if "threshold" not in changes:
        shown = torch.from_numpy(np.stack([Lamp.picture(level) for level in range(0, 256, 5)]))
        given = dict.fromkeys(meta["model"]["image_keys"], shown)
        with torch.no_grad():
            said = [torch.sigmoid(member(given)) for member in members]
        meta["threshold"] = float(torch.stack(said).mean(0).median())
    return saved


def write_fit(folder: Any, number: int = 1, seed: int = 0, **changes: Any) -> str:
    """The folder of a fit with random weights."""
    save_checkpoint(folder, 1, {"classifier": weights(number, seed, **changes)}, keep=1)
    (folder / "fit.yaml").write_text("{}\n")
    return str(folder)


def write_data(root: Path, number: int = 12, seed: int = 0) -> dict[str, str]:
    """Write trajectories of a lamp that is bright in every second one; return their folders."""
    generator = np.random.default_rng(seed)
    folders = {f"{kind}_dir": root / kind for kind in ("positive", "negative")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    for i in range(number):
        levels = generator.integers(0, 256 if i % 2 else BRIGHT, 8)
        levels[-1] = 200 if i % 2 else 50
        shown = np.stack([np.moveaxis(Lamp.picture(level), -1, 0) for level in levels])
        labels = (levels >= BRIGHT).astype(np.float32)
        kind = "positive_dir" if labels.any() else "negative_dir"
        write_trajectory(
            folders[kind], Trajectory({"base_camera": shown}, labels, bool(labels.any()))
        )
    return {name: str(folder) for name, folder in folders.items()}


def digests_of(data: dict[str, str]) -> list[str]:
    """Digests of the trajectories in these folders; none if there are no such folders."""
    folders = [data["positive_dir"], data["negative_dir"]]
    if not all(Path(folder).is_dir() for folder in folders):
        return []
    return load_frames(*folders, ["base_camera"]).digests


def pictures(levels: Any) -> np.ndarray:
    """Images [..., SIZE, SIZE, 3] with these first pixels."""
    levels = np.asarray(levels)
    shown = np.zeros((*levels.shape, SIZE, SIZE, 3), np.uint8)
    shown[..., 0, 0, 0] = levels
    return shown


def episode(*levels: int, over: bool = True) -> Batch:
    """Transitions [T] to images with these first pixels; the first observation is black."""
    number = len(levels)
    return Batch(
        obs=Batch(base_camera=pictures([0, *levels[:-1]])),
        act=np.zeros((number, 1), np.float32),
        rew=np.full(number, -7.0, np.float32),
        terminated=np.zeros(number, bool),
        truncated=(np.arange(number) == number - 1) & over,
        obs_next=Batch(base_camera=pictures(levels)),
    )


def config_of(directory: Any, fit: str, policy: str = "ppo", **reward: Any) -> dict[str, Any]:
    """A run of a second on the lamp, with a classifier as the reward."""
    off = policy != "ppo"
    collect = {"n_step": 32} | ({"warmup_steps": 32, "buffer_size": 400} if off else {})
    learn = {"batch_size": 16} | ({"updates_per_collect": 2} if off else {"repeat": 2})
    return {
        "imports": ["tests.reward.seeing"],
        "env": {"id": ID, "n_envs": 2, "kwargs": {"continuous": policy != "dqn"}},
        "policy": {"type": policy, "model": {"hidden": [8], "keys": ["state"]}},
        "reward": {"type": "classifier", "checkpoint_path": fit, **reward},
        "collect": collect,
        "learn": learn,
        "eval": {"every": 64, "episodes": 3},
        "run": {
            "dir": str(directory), "max_steps": 128, "log_every": 32, "checkpoint_every": 32,
        },
    }  # fmt: skip
