"""`classifier`: success as a classifier of pictures sees it, which also ends the episode.

The classifier is fitted beforehand (``guerdon reward fit``). A transition is scored on the picture
that it leads to. The classifier alone decides what is a success: nothing that the environment says
of it reaches the learner. With ``reward.cotrain`` a copy is refitted beside the policy, and doubts
successes that are like none that was collected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from guerdon.config.errors import ConfigError
from guerdon.data.batch import Batch
from guerdon.data.pictures import resized
from guerdon.data.trajectory_files import to_uint8
from guerdon.nn.classifier import BinaryRewardClassifier, ClassifierConfig
from guerdon.ops.classification import ensemble_probability, precision, recall
from guerdon.reward.base import Metrics, RewardConfig, RewardModel, Setting, register_reward_model
from guerdon.reward.history import in_columns, over
from guerdon.reward.refit import Refit, RefitConfig
from guerdon.reward.seen import Judged, Seen, together
from guerdon.reward.verdicts import Standing, first_claims, follow, still_open

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PAID, PAST = 2.0, -1.0
"""What `scan` adds to the probability of a transition that is paid for, and says of those after."""
_SPAN = 8  # steps that are scored together: what comes after a verdict need not be
_FRAMES = 128  # pictures of one call of the network: what it computes of them fits the cache
_GATES = (precision, recall)
_WORTH = 0.1  # where every frame pays its probability, the least that is worth a second look


class ClassifierRewardConfig(RefitConfig, RewardConfig):
    """Options of `classifier`; those of its network are the checkpoint's, and checked if given."""

    reward_type: Literal["binary", "continuous"] = "binary"
    """Whether a success pays 1, or as much as its probability."""
    reward_mode: Literal["terminal", "per_step"] = "terminal"
    """Whether it pays once, at the end of the episode, or for every frame. Paying for every frame
    is learned from sooner, and cheated sooner."""
    threshold: float | None = Field(default=None, gt=0, lt=1)
    """Probability from which a frame is a success; the one chosen in the fit by default."""
    hold: int = Field(default=1, ge=1)
    """Frames in a row that have to be a success; 1 to 5. More of them are harder to cheat."""
    terminate: Literal["read", "online", "never"] = Field(
        default_factory=lambda said: "never" if said.get("reward_mode") == "per_step" else "read"
    )
    """What the first (held) success does: it ends the episode for the learner (``read``), for the
    environment too, which is then reset (``online``), or nothing. Where left out: ``read``, and
    ``never`` if every frame is paid for."""
    pessimism: float = Field(default=0.0, ge=0)
    """How many times the spread of the members' probabilities is taken off their mean; 0 to 2."""
    min_precision: float = Field(default=0.8, ge=0, le=1)
    """The least precision on held-out episodes, at its threshold, that it is used with."""
    min_recall: float = Field(default=0.5, ge=0, le=1)
    """The least recall on held-out episodes, at its threshold, that it is used with."""
    image_keys: list[str] | None = None
    """Cameras; has to be what the classifier was fitted with, like all that follow."""
    image_size: tuple[int, int, int] | None = None
    """Channels, height and width of pictures."""
    width: int | None = None
    """Channels of the first stage."""
    hidden_dim: int | None = None
    """Size of the head."""
    num_spatial_blocks: int | None = None
    """Spatial embeddings a channel."""

    @model_validator(mode="after")
    def _check(self) -> ClassifierRewardConfig:
        if self.reward_mode == "per_step" and self.reward_type == "continuous":
            for name in ("threshold", "hold"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ConfigError(
                        f"'reward.{name}' is set, but nothing reads it: with reward_type "
                        "continuous and reward_mode per_step every frame pays its probability"
                    )
        if self.reward_mode == "per_step" and self.terminate != "never":
            raise ConfigError(
                "'reward.reward_mode' is per_step, but 'reward.terminate' is "
                f"{self.terminate}: where a success ends the pay, it is best avoided; set "
                "'reward.terminate' to never, or 'reward.reward_mode' to terminal"
            )
        return self


@register_reward_model("classifier")
class ClassifierReward(RewardModel):
    """Pays for what its classifier takes for a success.

    Attributes:
        members: The classifiers; several are an ensemble.
        meta: What the fit says of them: architecture, threshold, temperature, validation, data.
    """

    Config = ClassifierRewardConfig
    episodic = True
    learns = True
    scans = ("obs_next",)
    needs_checkpoint = True

    def __init__(self, config: Any, device: str = "cpu", tb_logger: Any = None) -> None:
        super().__init__(config, device, tb_logger)
        self.members: list[BinaryRewardClassifier] = []
        self.meta: dict[str, Any] = {}
        self.decides = self.config.terminate != "never"
        self.ends_online = self.config.terminate == "online"
        self._standing = self._online = Standing.fresh(1)
        self._heard: list[Seen] = []  # what `verdicts` has told since the scan
        self._claimed = np.zeros((0, 0), bool)  # what a refit learns from in the newest rollout
        self._n_claims = np.zeros(1, np.int64)  # of the running episodes
        self._setting: Setting | None = None
        self._refit = Refit(self.config, self.config.hold if self.decides else None)

    def setup(self, setting: Setting) -> None:
        """See `RewardModel`."""
        if setting.horizon is not None and self.config.hold > setting.horizon:
            raise ValueError(
                f"'reward.hold' is {self.config.hold}, but an episode has {setting.horizon} steps "
                "at most, so that nothing would ever be paid: set it to 1 to 5"
            )
        self._setting = setting
        self._standing, self._online = (Standing.fresh(setting.n_envs) for _ in range(2))
        self._n_claims = np.zeros(setting.n_envs, np.int64)
        self._refit.generator = np.random.default_rng(setting.seed)
        if not setting.on_policy:
            self.fields = ("obs_next",)  # what it said of old transitions may have changed

    @property
    def threshold(self) -> float:
        """The probability from which a frame is a success."""
        return float(self.config.threshold or self.meta["threshold"])

    @property
    def image_keys(self) -> list[str]:
        """The cameras that it looks through."""
        return list(self.meta["model"]["image_keys"])

    # --- what frames show

    @property
    def _bound(self) -> float:
        """The probability from which a frame is worth something."""
        by_itself = self.config.reward_type == "continuous"
        return _WORTH if by_itself and self.config.reward_mode == "per_step" else self.threshold

    def probability(self, obs: Any) -> np.ndarray:
        """The probability that frames [...] show a success: 0 where that is doubted."""
        return self._seen(obs).probability

    def _seen(self, obs: Any) -> Seen:
        pictures = self._cameras(obs)
        lead = next(iter(pictures.values())).shape[:-3]
        flat = {key: frames.reshape(-1, *frames.shape[-3:]) for key, frames in pictures.items()}
        number = len(next(iter(flat.values())))
        found = [
            self._joined(self._prepared({key: part[i : i + _FRAMES] for key, part in flat.items()}))
            for i in range(0, number, _FRAMES)
        ]
        return together([Seen.nothing((0,)), *found]).reshape(lead)

    @torch.no_grad()
    def _joined(self, frames: Mapping[str, np.ndarray]) -> Seen:
        given = {
            key: torch.from_numpy(np.ascontiguousarray(part)).to(self.device)
            for key, part in frames.items()
        }
        scale = 1.0 / float(self.meta["temperature"])
        said = torch.stack([torch.sigmoid(member(given) * scale) for member in self.members])
        joined = said.mean(0)
        if self.config.pessimism and len(said) > 1:
            joined = (joined - self.config.pessimism * said.std(0, correction=0)).clamp(min=0)
        claimed = joined >= self._bound
        if self._refit.second is not None and claimed.any():
            shown = {key: part[claimed] for key, part in given.items()}
            joined[claimed] *= ~self._refit.doubts(shown)
        return Seen(joined.float().numpy(force=True), claimed.numpy(force=True))

    def _cameras(self, obs: Any) -> dict[str, np.ndarray]:
        """The pictures that it looks at, as they are."""
        if not self.members:
            raise ValueError(
                "the reward 'classifier' has no classifier yet: fit one with `guerdon reward fit`, "
                "and name its folder as 'reward.checkpoint_path'"
            )
        keys = self.image_keys
        if not isinstance(obs, Batch | dict):
            obs = {keys[0]: obs}
        return {key: np.asarray(obs[key]) for key in keys}

    def _prepared(self, pictures: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Pictures as they were when the classifier was fitted."""
        size = self.meta["model"]["image_size"]
        return {key: _of_size(to_uint8(part, key), size) for key, part in pictures.items()}

    def judge(self, data: Batch) -> Judged:
        """What it says of one whole episode [T, ...] that is in no buffer."""
        probability = self.probability(data.obs_next)
        passes = probability >= self.threshold
        mask = np.ones((len(passes), 1), bool)
        held, _ = follow(
            Standing.fresh(1), passes[:, None], mask, np.zeros_like(mask), self.config.hold
        )
        ended = self.decides and held.any()
        end = int(held.argmax()) if ended else len(held) - 1
        return Judged(probability, passes, held[:, 0], end)

    # --- what transitions are worth

    def scan(self, data: Batch) -> np.ndarray:
        """See `RewardModel`: probabilities, with `PAID` where something is paid, else `PAST`."""
        mask = np.asarray(data.mask)
        if len(self._standing.run) != mask.shape[1]:
            self._standing = Standing.fresh(mask.shape[1])
            self._n_claims = np.zeros(mask.shape[1], np.int64)
        heard = together([Seen.nothing((0, mask.shape[1])), *self._heard])
        self._heard = []
        known = heard if len(heard.claimed) == len(mask) else None
        ends = over(data)
        said, claimed = self._follow(data.obs_next, mask, ends, self._standing, known)
        self._claimed = claimed & mask & (said != PAST)
        if self.decides:  # what is paid ends the episode; what is doubted could be shown for ever
            first = first_claims(self._n_claims, self._claimed, ends, self.config.hold)
            self._claimed &= first | (said > 0)
        return said

    def _follow(
        self,
        obs_next: Any,
        mask: np.ndarray,
        ends: np.ndarray,
        standing: Standing,
        known: Seen | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """What `scan` says, and what was a success; what is known need not be looked at."""
        pictures = self._cameras(obs_next) if known is None else {}
        seen = Seen.nothing(mask.shape) if known is None else known
        said = np.zeros(mask.shape, np.float32)
        for start in range(0, len(mask), _SPAN):
            now = slice(start, start + _SPAN)
            rows, over_now = mask[now], ends[now]
            if self.decides:
                rows = still_open(standing, rows, over_now)
            if known is None:
                new = self._seen({key: frames[now][rows] for key, frames in pictures.items()})
                seen.probability[now][rows], seen.claimed[now][rows] = new
            probability = seen.probability[now]
            passes = probability >= self.threshold
            held, past = follow(
                standing, passes, mask[now], over_now, self.config.hold, self.ends_online
            )
            if self.decides:
                said[now] = np.where(past, PAST, probability + PAID * held)
            else:
                paid = held if self.config.reward_mode == "per_step" else held & over_now
                said[now] = probability + PAID * paid
        return said, seen.claimed

    def score(self, data: Batch) -> Any:
        """See `RewardModel`; rows that were never scanned are taken for episodes from the start.

        Where these have a ``probability``, it is what `judge` said.
        """
        if "scanned" in data:
            said = np.asarray(data.scanned)
        else:
            rollout = in_columns(data, ("obs_next", "probability"))
            mask, known = rollout.mask, rollout.get("probability")
            judged = None if known is None else Seen(known, np.zeros(mask.shape, bool))
            fresh = Standing.fresh(mask.shape[1])
            said, _ = self._follow(rollout.obs_next, mask, over(rollout), fresh, judged)
            said = said.reshape(data.rew.shape)
        paid = said >= PAID
        probability = np.where(paid, said - PAID, said).clip(0)
        if "scanned" in data and "obs_next" in self.fields and self._refit.second is not None:
            worth = paid | (probability >= self._bound)
            # It has learned since. What was doubted then stays so: its episode went on.
            probability[worth] = self.probability(data.obs_next[worth])
            paid = paid & (probability >= self.threshold)
        if self.config.reward_type == "binary":
            return paid
        return probability if self.config.reward_mode == "per_step" else probability * paid

    def verdicts(self, obs_next: Any, done: np.ndarray, real: np.ndarray) -> np.ndarray:
        """See `RewardModel`."""
        seen = self._seen(obs_next)
        self._heard.append(seen.reshape((1, len(done))))
        passes = seen.probability[None] >= self.threshold
        held, _ = follow(self._online, passes, real[None], done[None], self.config.hold, True)
        ended: np.ndarray = held[0]
        return ended

    def break_off(self, env_ids: np.ndarray | None = None) -> None:
        """See `RewardModel`."""
        self._standing.begin(env_ids)
        self._online.begin(env_ids)
        self._n_claims[slice(None) if env_ids is None else env_ids] = 0

    # --- refitting

    def collect_data(self, data: Any) -> None:
        """Remembers what the policy got success for in this rollout, which was scanned last."""
        mask = np.asarray(data.mask)
        claimed = mask & self._claimed
        pictures = self._prepared(self._cameras(data.obs_next[claimed]))
        self._refit.remember(pictures, int(mask.sum()))

    def train(self) -> Metrics | None:
        """Refits a copy of the classifier, if there is enough that is new."""
        if not self._refit.due:
            return None
        return self._refit.fit(self.members[0], self.meta, self.device)

    def prepare_training(self) -> None:
        """Loads the successes that it was fitted with, before anything is begun."""
        self._refit.load(self.meta)

    # --- files

    def state_dict(self) -> dict[str, Any]:
        """See `RewardModel`."""
        if not self.members:
            return {}
        members = [
            {name: value.clone() for name, value in member.state_dict().items()}
            for member in self.members
        ]
        return {"members": members, "meta": {**self.meta}, "refit": self._refit.state_dict()}

    def portable(self, state: dict[str, Any]) -> dict[str, Any]:
        """See `RewardModel`."""
        return state and state | {"refit": self._refit.portable(state["refit"])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`; ``members`` and ``meta`` are those of a fit's checkpoint."""
        if not state:
            return
        self.meta = {**state["meta"]}
        self._check_spaces()
        config = ClassifierConfig(**self.meta["model"])
        self.members = []
        for saved in state["members"]:
            member = BinaryRewardClassifier(config, load_pretrained=False)
            member.load_state_dict(saved)
            self.members.append(member.to(self.device).eval())
        if "refit" in state:
            self._refit.load_state_dict(state["refit"], self.members[0])

    def check_good_enough(self) -> None:
        """Sees that what it pays for is mostly success, by the episodes that the fit held out."""
        if self.config.pessimism and len(self.members) < 2:
            raise ValueError(
                "'reward.pessimism' is set, but there is one classifier and so no spread: fit "
                "several with reward.members=3, or leave it out"
            )
        less = f" (pessimism {self.config.pessimism:g})" if self.config.pessimism else ""
        for name, found in self._held_out().items():
            least = getattr(self.config, f"min_{name}")
            if found < least:
                raise ValueError(
                    f"the classifier has a {name} of {found:.2f} on held-out episodes at the "
                    f"threshold {self.threshold:.3f}{less}, which is below 'reward.min_{name}' "
                    f"({least}): collect more trajectories of both kinds and fit it again, or "
                    f"lower reward.min_{name} if you know why"
                )

    def _held_out(self) -> dict[str, float]:
        """Precision and recall on held-out episodes, as it is used; 0 if nothing passes."""
        said, pessimism = self.meta["held_out"], self.config.pessimism
        scores = ensemble_probability(said["logits"], self.meta["temperature"], pessimism)
        # In the dtype that networks score in, as the threshold was chosen.
        passes, labels = scores.astype(np.float32), said["labels"]
        found = {measure.__name__: measure(passes, labels, self.threshold) for measure in _GATES}
        return {name: float(np.nan_to_num(value)) for name, value in found.items()}

    def _check_spaces(self) -> None:
        """Sees that the environment has the cameras that the classifier looks through."""
        if self._setting is None:
            return
        space = self._setting.observation_space
        keys = self.meta["model"]["image_keys"]
        parts = getattr(space, "spaces", None)
        if parts is None:
            parts = {keys[0]: space} if len(keys) == 1 and len(space.shape or ()) == 3 else {}
        channels = self.meta["model"]["image_size"][0]
        for key in keys:
            if key not in parts:
                raise ValueError(
                    f"the classifier looks through the camera {key!r} (reward.model.image_keys), "
                    f"but observations have {', '.join(parts) or 'no camera at all'}: choose "
                    "others (of many environments, env.kwargs.obs=both)"
                )
            shape = parts[key].shape
            if len(shape) != 3 or channels not in (shape[0], shape[-1]):
                raise ValueError(
                    f"the classifier was fitted with pictures of {channels} channels "
                    f"(reward.model.image_size), but those of {key!r} are {list(shape)}"
                )


def _of_size(pictures: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Pictures [..., H, W, C] or [..., C, H, W] in a size, as they were resized when collected."""
    channels, height, width = size
    if pictures.shape[-3:] in ((height, width, channels), (channels, height, width)):
        return pictures
    if pictures.shape[-1] == channels:
        pictures = np.moveaxis(pictures, -1, -3)
    return resized(pictures, (height, width))
