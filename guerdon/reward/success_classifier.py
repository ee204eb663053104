"""`classifier`: predicted success from images as the reward, which also ends the episode.

The classifier is fitted beforehand (``guerdon reward fit``) and scores a transition by its next
image. The learner gets no success or reward from the environment. With ``reward.cotrain`` a copy is
refitted during training, and rejects successes that do not resemble collected ones.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field, model_validator
from torch.nn import functional

from guerdon.config.errors import ConfigError
from guerdon.data.batch import Batch
from guerdon.data.frames import Frames, load_frames, resized, to_uint8
from guerdon.data.leaves import to_numpy
from guerdon.nn.classifier import BinaryRewardClassifier, build_members
from guerdon.nn.init import seeded
from guerdon.nn.optimizer import Optimizer
from guerdon.ops.classification import ensemble_probability, precision, recall
from guerdon.reward.base import Metrics, RewardConfig, Setting, SuccessModel, register_reward_model
from guerdon.reward.ood import BEYOND, Reference, frame_vectors
from guerdon.reward.trained import TrainedReward

_SPAN = 8  # steps scored at a time; frames after a success are skipped
_FRAMES = 128  # frames per call of the network: activations fit the cache
_MIN_PROBABILITY = 0.1  # of frames that can be rejected if every frame is rewarded


class ClassifierRewardConfig(RewardConfig):
    """Options of `classifier`; options of its network have to match the checkpoint."""

    reward_type: Literal["binary", "continuous"] = "binary"
    """Reward of a success: 1, or its predicted probability."""
    reward_mode: Literal["terminal", "per_step"] = "terminal"
    """Reward once, at the end, or for every frame, which is easier to learn and to exploit."""
    threshold: float | None = Field(default=None, gt=0, lt=1)
    """Minimum probability of a success; by default the threshold of the fit."""
    hold: int = Field(default=1, ge=1)
    """Number of consecutive frames that have to be a success; usually 1 to 5. More is harder to
    exploit."""
    terminate: Literal["read", "online", "never"] = Field(
        default_factory=lambda given: "never" if given.get("reward_mode") == "per_step" else "read"
    )
    """Effect of the first (held) success: end of the episode for the learner (``read``), also a
    reset of the environment (``online``), or none (``never``, the default for ``per_step``)."""
    pessimism: float = Field(default=0.0, ge=0)
    """Multiple of the members' standard deviation that is subtracted from their mean; usually 0 to
    2."""
    min_precision: float = Field(default=0.8, ge=0, le=1)
    """Minimum precision on held-out episodes at the threshold; usually 0.7 to 0.95."""
    min_recall: float = Field(default=0.5, ge=0, le=1)
    """Minimum recall on held-out episodes at the threshold; usually 0.3 to 0.9."""
    train_every: int = Field(default=2_000, ge=1)
    """New transitions between refits, with ``reward.cotrain``; usually 1,000 to 20,000."""
    update_per_collect: int = Field(default=50, ge=1)
    """Gradient steps per refit; usually 20 to 200."""
    batch_size: int = Field(default=64, ge=4)
    """Frames per gradient step: half collected successes, half the policy's; usually 32 to 256."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """Learning rate of AdamW; usually 1e-4 to 1e-3."""
    min_likeness: float = Field(default=0.05, gt=0, lt=0.5)
    """Minimum probability of being a collected success, usually 0.01 to 0.1; frames below it are
    rejected. At 0.05 a kind of success may be 19 times as frequent among the policy's frames as
    among the collected ones."""
    forget: float = Field(default=0.1, ge=0, le=1)
    """Fraction by which weights move back to the fitted ones before each refit; usually 0.05 to
    0.3."""
    buffer_size: int = Field(default=4_000, ge=1)
    """Maximum number of stored frames of the policy, a uniform sample of the run."""
    keep_per_collect: int = Field(default=500, ge=1)
    """Maximum number of frames drawn from each rollout."""
    positive_dir: str | None = None
    """Folder of positive trajectories; by default that of the fit."""
    negative_dir: str | None = None
    """Folder of negative trajectories; by default that of the fit."""
    image_keys: list[str] | None = None
    """Cameras; like all options below, has to equal the option of the fit."""
    image_size: tuple[int, int, int] | None = None
    """Channels, height and width of images."""
    width: int | None = None
    """Channels of the first stage of the ResNet-10."""
    hidden_dim: int | None = None
    """Size of the head's hidden layer."""
    num_spatial_blocks: int | None = None
    """Number of learned spatial embeddings."""
    read_if_cotrained: ClassVar[tuple[str, ...]] = (
        *("train_every", "update_per_collect", "batch_size", "learning_rate", "forget"),
        *("buffer_size", "keep_per_collect", "positive_dir", "negative_dir"),
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.reward_mode == "per_step" and self.reward_type == "continuous":
            for name in ("threshold", "hold"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ConfigError(
                        f"'reward.{name}' has no effect with reward_type continuous and "
                        "reward_mode per_step, which reward every frame by its probability"
                    )
        if self.reward_mode == "per_step" and self.terminate != "never":
            raise ConfigError(
                "'reward.reward_mode' is per_step, but 'reward.terminate' is "
                f"{self.terminate}: a success would end the reward, so the policy would avoid it; "
                "set 'reward.terminate' to never, or 'reward.reward_mode' to terminal"
            )
        return self


class Refit(TrainedReward):
    """Discriminator of collected successes and successes of the policy.

    The fitted classifier and its threshold stay fixed. A copy of it, the discriminator, is trained
    to separate collected successes from frames that the classifier predicts as success, as in VICE
    (https://arxiv.org/abs/1805.11686). False successes do not resemble collected ones, so that the
    discriminator becomes certain; the probability of a true one falls only by how much more often
    the policy shows it. Hence only frames with a very low probability are rejected.

    The policy's frames are a uniform sample of the whole run, so that old false successes stay
    rejected. If a success ends an episode after `hold` frames, only the first rejected frames of
    each episode are stored: a policy that stays there would fill the sample.
    """

    network: BinaryRewardClassifier

    def __init__(self, model: "ClassifierReward") -> None:
        self._model = model
        self._successes = Batch()
        self._ends = np.zeros(0, np.int64)  # collected successes at which an episode would end
        super().__init__(model.config, model.setting)

    def build(self) -> BinaryRewardClassifier:
        """Copy the fitted classifier."""
        return copy.deepcopy(self._model.members[0])

    def make_optimizer(self) -> Optimizer:
        """See `TrainedReward`."""
        parameters, rate = self.network.parameters(), self.config.learning_rate
        return Optimizer(parameters, rate, max_grad_norm=1.0, weight_decay=0.01)

    @torch.no_grad()
    def rejects(self, images: Batch) -> torch.Tensor:
        """Return which frames [...] do not resemble any collected success."""
        lead = next(iter(images.values())).shape[:-3]
        flat = images.apply(lambda leaf: leaf.reshape(-1, *leaf.shape[-3:]))
        starts = range(0, max(lead.numel(), 1), _FRAMES)
        logits = torch.cat([self.network(flat[at : at + _FRAMES].to_dict()) for at in starts])
        return torch.sigmoid(logits).lt(self.config.min_likeness).reshape(lead)

    def collect_frames(self, images: Batch, n_new: int) -> None:
        """Store successes of the policy, by camera [N, ...], out of `n_new` new transitions."""
        self.new += n_new
        if number := min(self.config.keep_per_collect, len(images)):
            chosen = self.generator.choice(len(images), number, replace=False)
            self.memory.add(images[chosen], reservoir=self.generator)

    def load_successes(self) -> None:
        """Read the successes that the classifier was fitted with, once."""
        if self._successes:
            return
        data, model = self._model.meta["data"], self._model.meta["model"]
        positive = self.config.positive_dir or data["positive_dir"]
        negative = self.config.negative_dir or data["negative_dir"]
        frames = load_frames(positive, negative, model["image_keys"], model["image_size"])
        fitted = np.isin(frames.digests, data["digests"])  # others may have been added later
        if missing := len(data["digests"]) - fitted.sum():
            raise ValueError(
                f"{missing} of the {len(data['digests'])} trajectories that the classifier was "
                f"fitted with are not in {positive} and {negative}: set their folders in "
                "'reward.positive_dir' and 'reward.negative_dir', or fit it again"
            )
        rows = frames.labels & fitted[frames.episodes]
        self._successes = Batch(frames.images)[rows]
        first = frames.labels
        if self._model.ends_episodes:
            first = _first_successes(frames, self.config.hold)
        self._ends = np.flatnonzero(first[rows])

    def train(self) -> Metrics | None:
        """Refit, if there are enough new transitions and successes."""
        enough = min(self.config.batch_size // 2, self.config.buffer_size)
        return super().train() if len(self.memory) >= enough else None

    def fit(self, steps: int) -> Metrics:
        """See `TrainedReward`."""
        self.load_successes()
        with torch.no_grad():
            fitted = self._model.members[0].parameters()
            for own, target in zip(self.network.parameters(), fitted, strict=True):
                own.lerp_(target, self.config.forget)
        with seeded(self.generator, self.setting.device):  # for dropout
            return super().fit(steps)

    def loss(self) -> tuple[torch.Tensor, Metrics]:
        """Return the loss of the discriminator."""
        half = self.config.batch_size // 2
        rows = self.generator.integers(len(self._successes), size=half)
        rows[: half // 2] = self.generator.choice(self._ends, half // 2)
        policy = self.sample(self.config.batch_size - half)
        generator = torch.Generator().manual_seed(int(self.generator.integers(2**62)))
        images = {}
        for key, expert in self._successes[rows].to_device(self.device).items():
            shown = policy[key]
            if shown.shape[1:] != expert.shape[1:]:  # channels last
                shown = shown.movedim(-1, 1)
            images[key] = torch.cat([expert, shown])
        labels = torch.zeros(self.config.batch_size, device=self.device)
        labels[:half] = 1.0
        logits = self.network(images, generator)
        loss = functional.binary_cross_entropy_with_logits(logits, labels)
        rejected = torch.sigmoid(logits[half:].detach()) < self.config.min_likeness
        return loss, {"rejected": rejected.float().mean()}


def _first_successes(frames: Frames, number: int) -> np.ndarray:
    """Return which frames [N] are among the first `number` of consecutive successes."""
    follows = np.zeros(len(frames), bool)
    follows[1:] = frames.labels[:-1] & (frames.episodes[1:] == frames.episodes[:-1])
    rows = np.arange(len(frames))
    start = np.maximum.accumulate(np.where(follows, 0, rows))
    first: np.ndarray = frames.labels & (rows - start < number)
    return first


class SuccessMemory:
    """State of the running episodes of environments.

    Attributes:
        run: Number of consecutive successes up to the newest annotated frame [n_envs].
        ended: Whether a held success has ended the episode [n_envs].
        claims: Number of predicted successes so far in the episode [n_envs].
        online_run: `run` at the newest step [n_envs], for models that end episodes online.
        scores: Probabilities, predicted successes and mask [n_envs] of steps not yet annotated.
    """

    def __init__(self, n_envs: int) -> None:
        self.run = np.zeros(n_envs, np.int64)
        self.ended = np.zeros(n_envs, bool)
        self.claims = np.zeros(n_envs, np.int64)
        self.online_run = np.zeros(n_envs, np.int64)
        self.scores: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def take_scores(self, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return probabilities and predicted successes [T, n_envs] of rows scored step by step.

        None if some transitions of `mask` were not scored.
        """
        scores, self.scores = self.scores, []
        if not scores or len(scores) != len(mask):
            return None
        probability, claimed, real = map(np.stack, zip(*scores, strict=True))
        return (probability, claimed) if (mask <= real).all() else None

    def follow(
        self,
        success: np.ndarray,
        claimed: np.ndarray,
        mask: np.ndarray,
        first: np.ndarray,
        hold: int,
        ends: bool = True,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find held successes in rows [T, n_envs].

        Args:
            success: Which frames are a success.
            claimed: Which frames are predicted as success, including those rejected by refitting.
            mask: Which rows are transitions.
            first: Which rows begin an episode.
            hold: Number of consecutive successes for a held success.
            ends: Whether a held success ends its episode; if not, no row is after one.

        Returns:
            Held successes, rows after the first one of their episode, and which predicted successes
            before that are among the first `hold` of their episode.
        """
        held, after, early = (np.zeros(mask.shape, bool) for _ in range(3))
        for t, real in enumerate(mask):
            new = first[t]
            self.run[new], self.ended[new], self.claims[new] = 0, False, 0
            self.run = np.where(real, np.where(success[t], self.run + 1, 0), self.run)
            held[t] = real & (self.run >= hold)
            after[t] = real & self.ended
            self.ended |= held[t] & ends
            claims = claimed[t] & real & ~after[t]
            early[t] = claims & (self.claims < hold)
            self.claims += claims
        return held, after, early


@register_reward_model("classifier")
class ClassifierReward(SuccessModel):
    """Rewards predicted success.

    Attributes:
        members: Fitted classifiers, an ensemble if there are several.
        meta: Metadata of the fit: architecture, threshold, temperature, validation, data.
    """

    Config = ClassifierRewardConfig
    reads = collects = ("obs_next",)
    requires = frozenset({"checkpoint"})
    annotations = ("probability", "paid", "after_success")

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        hold, horizon = self.config.hold, self.setting.horizon
        if horizon is not None and hold > horizon:
            raise ValueError(
                f"'reward.hold' is {hold}, but an episode has {horizon} steps at most, so that no "
                "success would be rewarded: set it to 1 to 5"
            )
        self.members: list[BinaryRewardClassifier] = []
        self.meta: dict[str, Any] = {}
        self.ends_episodes = self.config.terminate != "never"
        self.ends_online = self.config.terminate == "online"
        self._refit: Refit | None = None  # only with cotraining
        self.reference = Reference()
        if not self.setting.on_policy:
            self.fields = ("obs_next",)  # a refit may reject stored successes

    @property
    def threshold(self) -> float:
        """Minimum probability of a success."""
        return float(self.config.threshold or self.meta["threshold"])

    @property
    def image_keys(self) -> list[str]:
        """Cameras of the classifier."""
        return list(self.meta["model"]["image_keys"])

    # --- frames

    def probability(self, obs: Any) -> np.ndarray:
        """Return the probability of success of frames [...]; 0 if rejected by refitting."""
        return self._predict(self._images(obs))[0]

    def _images(self, obs: Any) -> Batch:
        """Return the images of the classifier's cameras, unchanged."""
        if not self.members:
            raise ValueError(
                "the reward 'classifier' has no classifier yet: fit one with `guerdon reward fit`, "
                "and set its folder as 'reward.checkpoint_path'"
            )
        keys = self.image_keys
        if not isinstance(obs, Batch | dict):
            obs = {keys[0]: obs}
        return Batch({key: obs[key] for key in keys})

    def _prepared(self, images: Batch) -> Batch:
        """Return images in the format of the fit; uint8 images of its size stay on their device."""
        size, found = self.meta["model"]["image_size"], {}
        for key, part in images.items():
            known = part.dtype == torch.uint8
            found[key] = _of_size(part if known else to_uint8(to_numpy(part), key), size)
        return Batch(found)

    @torch.no_grad()
    def _predict(self, images: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return the probability of success [...], and predicted success before rejection."""
        lead = next(iter(images.values())).shape[:-3]
        probability, claimed = np.zeros(lead, np.float32), np.zeros(lead, bool)
        flat = images.apply(lambda leaf: leaf.reshape(-1, *leaf.shape[-3:]))
        for start in range(0, probability.size, _FRAMES):
            rows = slice(start, start + _FRAMES)
            frames = self._prepared(flat[rows]).to_device(self.device)
            mean = self._mean(frames.to_dict())
            passes = mean >= self._min_claim
            if self.rejects_ood and len(self.reference) and passes.any():
                passes &= self.reference.score(frame_vectors(frames)) < BEYOND
                mean = mean * passes
            if self._refit is not None and self._refit.fitted and passes.any():
                mean[passes] *= ~self._refit.rejects(frames[passes])
            probability.reshape(-1)[rows] = mean.float().numpy(force=True)
            claimed.reshape(-1)[rows] = passes.numpy(force=True)
        return probability, claimed

    def _mean(self, frames: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Mean probability of success of frames [N] in the format of the fit, less pessimism."""
        scale = 1.0 / float(self.meta["temperature"])
        each = torch.stack([torch.sigmoid(member(frames) * scale) for member in self.members])
        mean = each.mean(0)
        if self.config.pessimism and len(each) > 1:
            mean = (mean - self.config.pessimism * each.std(0, correction=0)).clamp(min=0)
        return mean

    def success(self, frames: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """See `probability`, for frames [N, ...] in the format of the fit and in torch alone."""
        if self.rejects_ood:
            raise ValueError(
                "'reward.ood' is floor, and its comparison with fitted frames cannot be part of "
                "another program: set it to warn"
            )
        mean = self._mean(frames)
        if self._refit is None or not self._refit.fitted:
            return mean
        likeness = torch.sigmoid(self._refit.network(frames))
        rejected = (mean >= self._min_claim) & (likeness < self.config.min_likeness)
        return torch.where(rejected, 0.0, mean)

    @property
    def _min_claim(self) -> float:
        """Return the minimum probability of frames that can be rejected."""
        continuous = self.config.reward_type == "continuous"
        per_step = self.config.reward_mode == "per_step"
        return _MIN_PROBABILITY if continuous and per_step else self.threshold

    def _rows_of_successes(self, batch: Batch) -> tuple[Any, Batch]:
        """Return the mask of predicted successes [...], and their frames in the fit's format."""
        after = batch.get("after_success", torch.zeros_like(batch.probability, dtype=torch.bool))
        rows = (batch.probability >= self.threshold) & ~after
        frames = self._prepared(self._images(batch.obs_next[rows]))
        return rows, frames.to_device(self.device)

    def compared(self, batch: Batch) -> torch.Tensor:
        """Return the cells [..., size] of predicted successes, and NaN for other frames."""
        rows, frames = self._rows_of_successes(batch)
        vectors = torch.full((*rows.shape, self.reference.rows.shape[-1]), torch.nan)
        vectors[rows] = frame_vectors(frames).cpu()
        return vectors

    def ood(self, batch: Batch) -> torch.Tensor:
        """Return scores of predicted successes; see `RewardModel`."""
        vectors = self.compared(batch)
        rows = ~vectors[..., 0].isnan()
        scores = torch.full(rows.shape, torch.nan)
        scores[rows] = self.reference.score(vectors[rows])
        return scores

    @torch.no_grad()
    def disagreement(self, batch: Batch) -> torch.Tensor | None:
        """Return the standard deviation of the members for predicted successes; NaN for others."""
        if len(self.members) < 2:
            return None
        rows, frames = self._rows_of_successes(batch)
        spread, scale = torch.full(rows.shape, torch.nan), 1.0 / float(self.meta["temperature"])
        each = [torch.sigmoid(member(frames.to_dict()) * scale) for member in self.members]
        spread[rows] = torch.stack(each).std(0, correction=0).cpu()
        return spread

    # --- episodes

    def new_memory(self, n_envs: int) -> SuccessMemory:
        """See `EpisodeRewardModel`."""
        return SuccessMemory(n_envs)

    def annotate(
        self, batch: Batch, memory: SuccessMemory
    ) -> tuple[dict[str, np.ndarray], SuccessMemory]:
        """See `EpisodeRewardModel`; frames that were already scored are not scored again.

        These have a ``probability``, or were scored by `ends`.
        """
        mask, first = batch.mask, batch.first & batch.mask
        held, after, early, claimed = (np.zeros(mask.shape, bool) for _ in range(4))
        probability, images = batch.get("probability"), Batch()
        if probability is None:
            scored = memory.take_scores(mask)
            probability, claimed = scored or (np.zeros(mask.shape, np.float32), claimed)
            images = Batch() if scored else self._images(batch.obs_next)
        for start in range(0, len(mask), _SPAN):
            now = slice(start, start + _SPAN)
            if images:
                rows = mask[now] & (np.logical_or.accumulate(first[now]) | ~memory.ended)
                probability[now][rows], claimed[now][rows] = self._predict(images[now][rows])
            success = probability[now] >= self.threshold
            held[now], after[now], early[now] = memory.follow(
                success, claimed[now], mask[now], first[now], self.config.hold, self.ends_episodes
            )
        probability = np.where(after, np.float32(0), probability)
        paid, claimed = held & ~after, claimed & mask & ~after
        if self.ends_episodes:
            # A rewarded success ends its episode, but a rejected one could be shown at every step.
            claimed &= early | (probability > 0)
        elif self.config.reward_mode == "terminal":
            paid &= batch.terminated | batch.truncated
        columns = {"probability": probability, "paid": paid, "after_success": after}
        return columns | {"claimed": claimed, "predicted": probability >= self.threshold}, memory

    def ends(
        self, obs_next: Any, done: np.ndarray, real: np.ndarray, memory: SuccessMemory
    ) -> np.ndarray:
        """See `SuccessModel`."""
        probability, claimed = self._predict(self._images(obs_next))
        memory.scores.append((probability, claimed, real.copy()))
        success = (probability >= self.threshold) & real
        run = np.where(success, memory.online_run + 1, 0)
        held: np.ndarray = run >= self.config.hold
        memory.online_run = np.where(done | held, 0, run)
        return held

    # --- rewards

    def score(self, batch: Batch) -> torch.Tensor:
        """Return the reward of annotated transitions.

        Off-policy, refitting may reject successes later. Frames that were rejected at first stay
        rejected, since their episodes continued.
        """
        probability: torch.Tensor = batch.probability
        paid: torch.Tensor = batch.paid
        terminal = self.config.reward_mode == "terminal"
        if self.fields and self._refit is not None and self._refit.fitted:
            rows = paid if terminal else probability >= self._min_claim
            chosen, rejected = _chosen(rows), torch.zeros_like(paid)
            images = self._prepared(self._images(batch.obs_next[chosen])).to_device(self.device)
            rejected[chosen] = self._refit.rejects(images)
            accepted = ~(rejected & rows)
            probability, paid = probability * accepted, paid & accepted
        if self.config.reward_type == "binary":
            return paid.float()
        return probability * paid if terminal else probability

    # --- refitting

    def _start_refit(self) -> Refit:
        if self._refit is None:
            self._refit = Refit(self)
        return self._refit

    def collect_data(self, batch: Batch) -> None:
        """Store the successes of an annotated rollout."""
        images = self._images(batch.obs_next[batch.claimed & batch.mask])
        # Rows after a success are new transitions, too, although they may be masked.
        n_new = np.count_nonzero(batch.mask | batch.after_success)
        self._start_refit().collect_frames(self._prepared(images), int(n_new))

    def train(self) -> Metrics | None:
        """Refit, if there is enough new data."""
        return self._refit.train() if self._refit is not None else None

    def prepare(self) -> None:
        """Read the successes that the classifier was fitted with."""
        self._start_refit().load_successes()

    # --- state

    def training_state(self) -> dict[str, Any]:
        """See `RewardModel`."""
        if not self.members:
            return {}
        members = [copy.deepcopy(member.state_dict()) for member in self.members]
        refit = {} if self._refit is None else {"refit": self._refit.training_state()}
        return {"members": members, "meta": {**self.meta}, **refit}

    def portable_state(self) -> dict[str, Any]:
        """See `RewardModel`."""
        refit = {} if self._refit is None else {"refit": self._refit.portable_state()}
        return self.training_state() | refit

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`; ``members`` and ``meta`` may come from a fit."""
        if not state:
            return
        self.meta = {**state["meta"]}
        self._check_spaces()
        self.members = [member.to(self.device) for member in build_members(state)]
        if "reference" in self.meta:  # of the fit, unless it is an older one
            self.reference.load_training_state(self.meta["reference"])
        self._refit = None
        if "refit" in state:
            self._start_refit().load_training_state(state["refit"])

    def check_good_enough(self) -> None:
        """Check precision and recall on the held-out episodes of the fit."""
        pessimism, held_out = self.config.pessimism, self.meta["held_out"]
        if pessimism and len(self.members) < 2:
            raise ValueError(
                "'reward.pessimism' is set, but a single classifier has no standard deviation: fit "
                "several with reward.members=3, or leave it out"
            )
        logits, labels = held_out["logits"], held_out["labels"]
        scores = ensemble_probability(logits, self.meta["temperature"], pessimism)
        scores = scores.astype(np.float32)  # the precision of scores and threshold
        also = f" (pessimism {pessimism:g})" if pessimism else ""
        for name, measure in (("precision", precision), ("recall", recall)):
            found = np.nan_to_num(measure(scores, labels, self.threshold))  # 0 if nothing passes
            least = getattr(self.config, f"min_{name}")
            if found < least:
                raise ValueError(
                    f"the classifier has a {name} of {found:.2f} on held-out episodes at the "
                    f"threshold {self.threshold:.3f}{also}, which is below 'reward.min_{name}' "
                    f"({least}): collect more trajectories of both kinds and fit it again, or "
                    f"lower reward.min_{name} if this is acceptable"
                )

    def _check_spaces(self) -> None:
        """Check that observations have the cameras of the classifier."""
        space, keys = self.setting.observation_space, self.image_keys
        if space is None:
            return
        channels = self.meta["model"]["image_size"][0]
        parts = space.spaces if isinstance(space, spaces.Dict) else {keys[0]: space}
        shapes = {key: part.shape or () for key, part in parts.items()}
        cameras = [key for key, shape in shapes.items() if len(shape) == 3]
        for key in keys:
            if key not in cameras:
                raise ValueError(
                    f"the classifier uses the camera {key!r} (reward.model.image_keys), but "
                    f"observations have {', '.join(cameras) or 'no camera'}: choose others "
                    "(for many environments, set env.kwargs.obs=both)"
                )
            if channels not in (shapes[key][0], shapes[key][-1]):
                raise ValueError(
                    f"the classifier was fitted with images of {channels} channels "
                    f"(reward.model.image_size), but those of {key!r} are {list(shapes[key])}"
                )


def _chosen(rows: torch.Tensor) -> Any:
    """Return rows as an index; all rows on a GPU, where counting them would synchronise."""
    return rows if rows.device.type == "cpu" else slice(None)


def _of_size(images: Any, size: Sequence[int]) -> Any:
    """Return images [..., H, W, C] or [..., C, H, W] resized as in collecting."""
    channels, height, width = size
    if images.shape[-3:] in ((height, width, channels), (channels, height, width)):
        return images
    images = to_numpy(images)
    if images.shape[-1] == channels:
        images = np.moveaxis(images, -1, -3)
    return resized(images, (height, width))
