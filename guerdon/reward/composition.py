"""The reward of a learner: a weighted sum of terms, resolved when data is read."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Env

from guerdon.config.schema import as_terms
from guerdon.config.validation import validated
from guerdon.data.batch import Batch, from_leaves
from guerdon.data.demonstrations import KEYS, Demonstrations, as_like
from guerdon.data.leaves import check_like, describe
from guerdon.data.spaces import check_same_layout
from guerdon.ops.checks import weighted_mean
from guerdon.reward.base import (
    REWARDS,
    EpisodeRewardModel,
    Metrics,
    ReplaySource,
    ReplayTransform,
    RewardModel,
    Setting,
    SuccessModel,
    as_rewards,
    check_requirements,
    create_reward_model,
)
from guerdon.reward.controls import EnvReward
from guerdon.reward.ood import BEYOND
from guerdon.reward.scaling import ReturnScaler
from guerdon.reward.transitions import checked

ENDS = ("rew", "terminated", "truncated")
STAGES = ("scale", "clip", "normalize", "cotrain", "ood")


Familiarity = dict[str, np.ndarray]
"""Of transitions [...]: out-of-distribution ``score``, ``vector`` [..., size], reward ``rew``,
whether it is ``well_paid`` and, of an ensemble, ``spread``: the share of fitted transitions with
less disagreement."""


class Term(NamedTuple):
    """One summand."""

    model: RewardModel
    weight: float


class Reward:
    """Weighted sum of reward models, optionally scaled, clipped or normalised.

    In every batch it resolves, ``rew`` is the learner's reward, ``rew_env`` the environment's, and
    ``rew_terms.<name>`` each term before its weight.

    Args:
        terms: Reward models by name, with their weights.
        scale: Factor of the sum.
        clip: Bounds of the scaled sum, or None.
        normalize: Whether to divide by the standard deviation of the discounted return.
        gamma: Discount factor of that return.
        cotrain: Whether to train the models during policy training.
        ood: What to do with transitions that are out of distribution: ``warn`` measures how many
            there are in evaluations, ``floor`` also gives them the lowest reward of the fitted
            data, unless the model is trained with the policy; ``off`` does nothing.
    """

    def __init__(
        self,
        terms: Mapping[str, Term],
        *,
        scale: float = 1.0,
        clip: tuple[float, float] | None = None,
        normalize: bool = False,
        gamma: float = 0.99,
        cotrain: bool = True,
        ood: str = "warn",
    ) -> None:
        if not terms:
            raise ValueError("a reward needs at least one term, such as {type: env}")
        self.terms = dict(terms)
        self.scale = scale
        self.clip = clip
        self.scaler = ReturnScaler(gamma) if normalize else None
        self.cotrain = cotrain
        self.ood = ood
        self.updates = 0
        """Number of calls of `train` with an effect."""
        models = {name: term.model for name, term in self.terms.items()}
        self._floored = {  # names of terms
            name
            for name, model in models.items()
            if ood == "floor" and not (cotrain and model.collects)
        }
        for name, model in models.items():
            if isinstance(model, SuccessModel):
                model.rejects_ood = name in self._floored
        self.models = list(models.values())
        self.history = max(model.history for model in self.models)
        """Maximum `history` of the models."""
        self._transforms = [model for model in self.models if isinstance(model, ReplayTransform)]
        self._annotators = {
            name: model
            for name, model in models.items()
            if isinstance(model, EpisodeRewardModel) and model.annotations
        }
        predicting: Any = {name: m for name, m in models.items() if isinstance(m, SuccessModel)}
        self._ending = [name for name, model in predicting.items() if model.ends_episodes]
        self.success_term: Any = next(iter((*self._ending, *predicting)), None)
        """Name of the term that predicts success, or None."""
        self.success: Any = predicting.get(self.success_term)
        sources: Any = {name: m for name, m in models.items() if isinstance(m, ReplaySource)}
        self._source: ReplaySource | None = next(iter(sources.values()), None)
        self._check_terms(sources)
        fields = {field for model in self.models for field in model.fields}
        annotations = {"annotations"} if self._annotators else set()
        ends = {"terminated"} if self._ending else set()
        self.fields = tuple(sorted(fields | annotations | ends))
        """Fields of a transition that `resolve` reads, in addition to ``rew``."""
        collected = {field for model in self._annotators.values() for field in model.reads}
        collected |= {field for model in self.models if cotrain for field in model.collects}
        self.collects = tuple(sorted(collected | ({"rew", *fields} if normalize else set())))
        """Fields of new transitions that are collected; empty if none are needed."""
        # The newest rewards, their mask, and the rewards of each term.
        self._resolved: tuple[torch.Tensor, Any, dict[str, torch.Tensor]] | None = None
        self._totals: dict[str, Any] = {}
        """Sums of all rewards of each term since the last `reward_stats`."""

    def _check_terms(self, sources: Mapping[str, Any]) -> None:
        """Raise an error if terms cannot be used together."""
        if len(self._ending) > 1:
            raise ValueError(
                f"the rewards {' and '.join(map(repr, self._ending))} both end episodes at a "
                "success: set 'terminate' of all but one to never"
            )
        if not sources:
            return
        first, *further = sources
        for other, (model, _) in self.terms.items():
            in_time = model.history or other in self._annotators or model in self._transforms
            if other in further or in_time:
                raise ValueError(
                    f"the reward {first!r} adds transitions of other policies, which {other!r} "
                    "cannot score: use one of them"
                )
        if self.scaler:
            raise ValueError(
                f"'reward.normalize' uses rewards of the policy's transitions, which are all 0 for "
                f"{first!r}: use 'reward.scale'"
            )

    def __repr__(self) -> str:
        terms = [
            name if weight == 1 else f"{weight:g} * {name}"
            for name, (_, weight) in self.terms.items()
        ]
        return f"Reward({' + '.join(terms)})"

    @property
    def is_env(self) -> bool:
        """Whether this is the environment reward, possibly scaled or clipped."""
        return all(isinstance(model, EnvReward) for model in self.models)

    @property
    def is_learned(self) -> bool:
        """Whether the environment reward is not part of it."""
        terms = self.terms.values()
        return not any(isinstance(model, EnvReward) and weight for model, weight in terms)

    @property
    def changes(self) -> bool:
        """Whether it may change during training, so that returns are not comparable over time."""
        trained = self.cotrain and any(model.collects for model in self.models)
        return self.scaler is not None or trained

    @property
    def changes_replay(self) -> bool:
        """Whether it relabels or adds samples of a replay buffer."""
        return bool(self._transforms) or self._source is not None

    @property
    def ends_online(self) -> bool:
        """Whether a predicted success resets the environment."""
        return self.success is not None and bool(self.success.ends_online)

    # --- episodes

    def new_memory(self, n_envs: int) -> dict[str, Any]:
        """Return the state of episodes at their start, for `annotate` and `ends`."""
        return {name: model.new_memory(n_envs) for name, model in self._annotators.items()}

    def annotate(self, batch: Batch, memory: dict[str, Any]) -> tuple[Batch, dict[str, Any]]:
        """Annotate a new rollout; see `EpisodeRewardModel.annotate`.

        Adds ``columns.<term>`` for `collect_data`, of which ``annotations.<term>`` have to be
        stored, and removes rows after a success from ``mask``.
        """
        if not self._annotators:
            return batch, {}
        stored, columns, after = {}, {}, {}
        for name, model in self._annotators.items():
            columns[name], after[name] = model.annotate(batch, memory[name])
            stored[name] = {key: columns[name][key] for key in model.annotations}
        mask = batch.mask
        for name in self._ending:
            mask = mask & ~columns[name]["after_success"]
        return batch.replace(mask=mask, annotations=Batch(stored), columns=Batch(columns)), after

    def ends(
        self, obs_next: Any, done: np.ndarray, real: np.ndarray, memory: dict[str, Any]
    ) -> np.ndarray:
        """See `SuccessModel.ends`."""
        ended: np.ndarray = self.success.ends(obs_next, done, real, memory[self.success_term])
        return ended

    # --- rewards

    def transform(self, batch: Batch, indices: np.ndarray, source: Any) -> Batch:
        """Prepare transitions at indices of a buffer or rollout for `resolve`.

        Relabels them and reads previous rows, before they are moved to a device.
        """
        if self._transforms:
            batch = batch.replace(rew_env=batch.rew)
        for model in self._transforms:
            batch = model.apply(batch, source, indices)
        return self._with_rows_before(batch, indices, source)

    def _with_rows_before(self, batch: Batch, indices: Any, source: Any) -> Batch:
        before = {
            name: source.before(indices, batch.get("mask"), model.history, model.fields)
            for name, (model, _) in self.terms.items()
            if model.history
        }
        return batch.replace(before=Batch(before)) if before else batch

    def resolve(self, batch: Batch) -> Batch:
        """Return the result of `transform`, on a device, with the learner's reward."""
        (name, (model, weight)), *others = self.terms.items()
        if type(model) is EnvReward and weight == 1 and not others:
            terms = {name: as_rewards(model.score(batch), batch.rew, name)}
        else:
            terms = self.scores(batch)
            self._add_totals(terms, batch.get("mask"))
        if self._ending and "terminated" in batch:
            paid = terms[self._ending[0]] > 0
            ends = [key for key in ("terminated", "done") if key in batch]
            batch = batch.replace(**{key: batch[key] | paid for key in ends})
        rew = self._scale_and_clip(self._sum(terms))
        self._resolved = rew, batch.get("mask"), terms
        rew_env = batch.get("rew_env", batch.rew)
        found = {"rew": rew, "rew_env": rew_env, "rew_terms": from_leaves(terms)}
        return from_leaves(dict(batch.items()) | found)

    def _add_totals(self, terms: Mapping[str, torch.Tensor], mask: torch.Tensor | None) -> None:
        """Add up the rewards of each term, which shows NaN without waiting for the device."""
        totals = {}
        for name, values in terms.items():
            if self.terms[name].weight:
                real = values if mask is None else torch.where(mask, values, 0.0)
                totals[name] = self._totals.get(name, 0.0) + real.sum()
        self._totals = totals  # not in place: `guerdon.export` traces a shallow copy

    @torch.no_grad()
    def scores(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the rewards of each term for the result of `transform`, on a device."""
        scores = {}
        for name, (model, _) in self.terms.items():
            read = batch
            if name in self._annotators:
                read = read.replace(**dict(batch.annotations[name].items()))
            if model.history:
                read = read.replace(before=batch.before[name])
            scores[name] = as_rewards(model.score(read), batch.rew, name)
            if name in self._floored:
                scores[name] = _floored(model, read, scores[name])
        return scores

    @torch.no_grad()
    def familiarity(self, batch: Batch, indices: Any, source: Any) -> dict[str, Familiarity]:
        """Compare an annotated rollout with the data that each term was fitted to.

        Terms for which that is unknown are left out; see `collect_data` for the arguments.
        """
        known = [name for name, (model, _) in self.terms.items() if len(model.reference)]
        if self.ood == "off" or not known:
            return {}
        read = self._with_rows_before(batch, indices, source).to_device(self.models[0].device)
        rewards = self.scores(read)
        found = {}
        for name in known:
            model, own = self.terms[name].model, read
            if name in self._annotators:
                own = own.replace(**dict(own.columns[name].items()))
            spread = model.disagreement(own) if len(model.reference.disagreement) else None
            parts = {
                "score": model.ood(own),
                "vector": model.compared(own),
                "rew": rewards[name],
                "well_paid": model.reference.well_paid(rewards[name]),
                **({} if spread is None else {"spread": model.reference.disagrees(spread)}),
            }
            found[name] = {key: part.numpy(force=True) for key, part in parts.items()}
        return found

    @property
    def spaces(self) -> tuple[Any, Any]:
        """Observation and action space of the run that it is of; None if unknown."""
        of_models = [model.setting.spaces for model in self.models]
        return next((spaces for spaces in of_models if None not in spaces), (None, None))

    def checked(self, batch: Any) -> Batch:
        """Return transitions [...] that can be scored; see `guerdon.reward.transitions.checked`."""
        read = {field for model in self.models for field in model.fields}
        for model in self._annotators.values():
            known = isinstance(batch, Batch) and all(name in batch for name in model.annotations)
            read |= set() if known else set(model.reads)
        return checked(batch, sorted(read), self.spaces)

    @torch.no_grad()
    def score(self, batch: Batch | Mapping[str, Any]) -> np.ndarray:
        """Return the learner's reward of transitions [T, ...] in time order, outside a buffer.

        Args:
            batch: ``rew``, and the fields that the reward reads, such as ``obs`` and ``act``.
        """
        batch = self.checked(batch)
        terms = {}
        for name, (model, _) in self.terms.items():
            estimated = model.estimate(batch)
            if not isinstance(estimated, Batch):
                raise ValueError(
                    f"estimate() of the reward model {name!r} returns {describe(estimated)}: "
                    "return a copy of the Batch with its rewards as 'rew'"
                )
            terms[name] = torch.as_tensor(estimated.rew)
        for name in self._floored:
            model = self.terms[name].model
            terms[name] = _floored(model, batch.to_device(model.device), terms[name])
        return self._scale_and_clip(self._sum(terms)).numpy(force=True)

    def label(self, data: Demonstrations) -> Demonstrations:
        """Return demonstrations with the learner's reward instead of the recorded one."""
        if not isinstance(data, Demonstrations):
            raise TypeError(
                f"only Demonstrations can be labelled, not {describe(data)}: read them with "
                "guerdon.data.load_demonstrations, or score a Batch with score()"
            )
        episodes = [episode.replace(rew=self.score(episode)) for episode in data.episodes]
        return replace(data, episodes=episodes)

    def wrap(self, env: Env[Any, Any]) -> Env[Any, Any]:
        """Return a Gymnasium environment with the learner's reward.

        ``info["env_reward"]`` is the environment reward. An episode ends at a predicted
        success if the reward ends episodes there.
        """
        from guerdon.reward.wrapper import LearnedReward  # circular import

        if not isinstance(env, Env):
            raise TypeError(
                f"only a Gymnasium environment can be wrapped, not {describe(env)}: make it with "
                "gymnasium.make(ID)"
            )
        if self.changes_replay:
            raise TypeError(
                f"the reward {' + '.join(self.terms)} relabels or adds samples of a replay buffer, "
                "so it cannot score single steps: train with guerdon"
            )
        parts = (env.observation_space, "observations"), (env.action_space, "actions")
        for (space, name), of_run in zip(parts, self.spaces, strict=True):
            if of_run is not None:
                check_same_layout(space, of_run, name)
        return LearnedReward(env, self)

    def score_rollout(self, batch: Batch, indices: np.ndarray, source: Any) -> np.ndarray:
        """Return the learner's reward of a rollout; see `collect_data`."""
        return self._scale_and_clip(self._sum_of(batch, indices, source)).numpy(force=True)

    def _sum_of(self, batch: Batch, indices: Any, source: Any) -> torch.Tensor:
        """Return the unscaled sum of all terms of a rollout."""
        read = self._with_rows_before(batch, indices, source)
        return self._sum(self.scores(read.to_device(self.models[0].device)))

    def reward_stats(self) -> Metrics:
        """Return mean and standard deviation of the newest rewards; empty for the environment's.

        Of several terms, also the mean of each, without its weight. NaN or infinity among the
        rewards since the last call is an error, before the policy acts with weights made of them.
        """
        totals = [*self._totals.values()]
        finite = torch.stack(totals).isfinite().tolist() if totals else []
        for name, is_finite in zip(self._totals, finite, strict=True):
            if not is_finite:
                raise RuntimeError(
                    f"the reward term {name!r} is not finite: its score() returned NaN or infinity "
                    "for some transitions; correct it, or if the model is trained, make its "
                    "'learning_rate' smaller"
                )
        self._totals = {}
        if self._resolved is None or self.is_env:
            return {}
        rew, mask, terms = self._resolved
        mean = weighted_mean(rew, mask=mask)
        variance = weighted_mean((rew - mean).square(), mask=mask)
        means = terms if len(terms) > 1 else {}
        return {
            "reward/mean": mean,
            "reward/std": variance.sqrt(),
            **{
                f"reward/{name}/mean": weighted_mean(each, mask=mask)
                for name, each in means.items()
            },
        }

    def _sum(self, terms: Mapping[str, torch.Tensor]) -> torch.Tensor:
        total: Any = None
        for name, rew in terms.items():
            weight = self.terms[name].weight
            if weight:  # 0 times infinity would not be 0
                weighted = rew if weight == 1 else weight * rew
                total = weighted if total is None else total + weighted
        return torch.zeros_like(rew) if total is None else total

    def _scale_and_clip(self, rew: torch.Tensor) -> torch.Tensor:
        scale = self.scale * (self.scaler.scale if self.scaler else 1.0)
        if scale != 1.0:
            rew = scale * rew
        return rew if self.clip is None else rew.clip(*self.clip)

    # --- reading

    def replay(self, buffer: Any) -> Any:
        """Return the buffer that an off-policy policy samples from."""
        return buffer if self._source is None else self._source.mixed(buffer)

    def view(self, source: Any, device: torch.device) -> "ResolvedBuffer":
        """Return a view of a buffer or rollout with resolved rewards, as tensors."""
        return ResolvedBuffer(source, self, device)

    # --- learning

    def collect_data(
        self, batch: Batch, indices: np.ndarray | None = None, source: Any = None
    ) -> None:
        """Process new, annotated transitions at indices of a buffer or rollout.

        See `RewardModel.collect_data`; they have the fields of `collects`.
        """
        self._collect(batch)
        if self.scaler:
            rew = self._sum_of(batch, indices, source).numpy(force=True)
            self.scaler.collect(rew, batch.mask, batch.first)

    def _collect(self, batch: Batch) -> None:
        for name, (model, _) in self.terms.items() if self.cotrain else ():
            own = name in self._annotators
            model.collect_data(batch.replace(**dict(batch.columns[name].items())) if own else batch)

    def add_episodes(self, buffer: Any, episodes: Sequence[Batch]) -> None:
        """Add demonstrated episodes, annotated, to a replay buffer that has transitions."""
        like = buffer[:1]
        for episode in episodes:
            since = buffer.written
            buffer.extend({key: as_like(episode[key], like[key]) for key in KEYS})
            fresh, rows = buffer.rollout((*self.collects, *ENDS), since)
            batch, _ = self.annotate(fresh.to_numpy(), self.new_memory(buffer.n_envs))
            if self._annotators:
                buffer.annotate(rows[fresh.mask], batch.annotations[fresh.mask].to_dict())

    @property
    def can_pretrain(self) -> bool:
        """Whether a term can be trained before the policy acts."""
        return any(model.can_pretrain for model in self.models)

    def pretrain(self) -> Metrics:
        """Train every term before the policy."""
        metrics = {name: term.model.pretrain() for name, term in self.terms.items()}
        self._update_references(metrics)
        return _metrics(metrics)

    def train(self) -> Metrics:
        """Train every term on collected data; metrics are under ``reward/<term>/``."""
        trained = self.terms if self.cotrain else {}
        by_term = {name: term.model.train() for name, term in trained.items()}
        self._update_references(by_term)
        metrics = _metrics(by_term)
        self.updates += bool(metrics or self.scaler)
        return metrics

    def _update_references(self, metrics: Mapping[str, Metrics | None]) -> None:
        """Update what is known of the fitted data of the terms that were just trained."""
        for name in metrics if self.ood != "off" else ():
            model = self.terms[name].model
            if metrics[name] is not None or model.reference.floor is None:
                model.update_reference()

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """Drop collected data of every term, depending on the number of policy updates."""
        for model in self.models:
            model.clear_data(iter)

    # --- state

    def training_state(self) -> dict[str, Any]:
        """Return everything needed to resume."""
        return self._state(
            {name: model.training_state() for name, (model, _) in self.terms.items()}
        )

    def portable_state(self) -> dict[str, Any]:
        """Return the state that another run can start from."""
        return self._state(
            {name: model.portable_state() for name, (model, _) in self.terms.items()}
        )

    def _state(self, terms: dict[str, Any]) -> dict[str, Any]:
        scaler = {"scaler": self.scaler.training_state()} if self.scaler else {}
        return {"terms": terms, "updates": self.updates, **scaler}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore `training_state` or `portable_state`."""
        if list(state["terms"]) != list(self.terms):
            raise ValueError(
                f"the saved reward has the terms {list(state['terms'])}, "
                f"but this one has {list(self.terms)}"
            )
        check_like(state, self.portable_state(), "the reward")
        for name, term in self.terms.items():
            term.model.load_training_state(state["terms"][name])
        self.updates = state.get("updates", 0)
        if self.scaler:
            self.scaler.load_training_state(state["scaler"])


class ResolvedBuffer:
    """View of a buffer or rollout as tensors with resolved rewards."""

    def __init__(self, source: Any, reward: Reward, device: torch.device) -> None:
        self._source, self._reward, self._device = source, reward, device

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: Any) -> Batch:
        rows = self._source.rows(index)
        flat = np.atleast_1d(rows)
        batch = self._resolved(self._source[flat], flat)
        return batch[0] if rows.ndim == 0 else batch

    def __getattr__(self, name: str) -> Any:
        if name == "read":  # would return stored rewards
            raise AttributeError("a resolved buffer is read by index, or with get() and sample()")
        return getattr(self._source, name)

    def _resolved(self, batch: Batch, rows: np.ndarray) -> Batch:
        batch = self._reward.transform(batch, rows, self._source)
        return self._reward.resolve(batch.to_device(self._device))

    def get(self, index: Any, key: str, stack_num: int | None = None) -> Any:
        """Read one field at some rows."""
        if key.startswith("rew") or key in ("terminated", "done"):
            return self[index][key]
        stored = self._source.get(index, key, *(() if stack_num is None else (stack_num,)))
        return Batch({key: stored}).to_device(self._device)[key]

    def sample(
        self, batch_size: int, length: int = 1, fields: Sequence[str] | None = None
    ) -> tuple[Batch, np.ndarray]:
        """See `ReplayBuffer.sample`."""
        batch, rows = self._source.sample(batch_size, length, self._reads(fields))
        return self._resolved(batch, rows), rows

    def rollout(
        self, fields: Sequence[str] | None = None, since: np.ndarray | None = None
    ) -> tuple[Batch, np.ndarray]:
        """See `ReplayBuffer.rollout`."""
        batch, rows = self._source.rollout(self._reads(fields), since)
        return self._resolved(batch, rows), rows

    def _reads(self, fields: Sequence[str] | None) -> Sequence[str] | None:
        more = "rew", *self._reward.fields
        return None if fields is None else tuple(dict.fromkeys((*fields, *more)))

    @property
    def rew(self) -> "ResolvedRewards":
        """Rewards, to be indexed with row numbers; only these rows are resolved."""
        return ResolvedRewards(self)


class ResolvedRewards:
    """``buffer.rew`` with resolved rewards."""

    def __init__(self, buffer: ResolvedBuffer) -> None:
        self._buffer = buffer

    def __getitem__(self, index: Any) -> Any:
        return self._buffer[index].rew


def _floored(model: RewardModel, batch: Batch, rew: torch.Tensor) -> torch.Tensor:
    """Return rewards with at most the lowest of the fitted data where out of distribution."""
    floor = model.reference.floor
    if floor is None or isinstance(model, SuccessModel):  # which rejects frames by itself
        return rew
    beyond = model.ood(batch) >= BEYOND
    return torch.where(beyond.to(rew.device), rew.clamp(max=floor), rew)


def _metrics(by_term: Mapping[str, Metrics | None]) -> Metrics:
    return {
        f"reward/{name}/{key}": value
        for name, metrics in by_term.items()
        for key, value in (metrics or {}).items()
    }


def make_reward(section: Mapping[str, Any] | RewardModel, setting: Setting | None = None) -> Reward:
    """Make the reward of a config section.

    Args:
        section: ``{type: NAME, …}``, or ``{terms: {NAME: {weight: …}}}``; or a model, as the only
            term.
        setting: Setting of the run.
    """
    setting = setting or Setting()
    if isinstance(section, RewardModel):
        return Reward({section.name: Term(section, 1.0)}, gamma=setting.gamma)
    section = as_terms({**section} if "terms" in section else {"type": "env", **section})
    terms = section.pop("terms")
    stages = {name: section.pop(name) for name in STAGES if name in section}
    if section:
        raise ValueError(f"options of a reward with terms belong inside the terms: {section}")
    options = {name: {"type": name, **(given or {})} for name, given in terms.items()}
    weights = {name: given.pop("weight", 1.0) for name, given in options.items()}
    for name, given in options.items():
        kind = REWARDS.get(given["type"])
        config = validated(kind.Config, given, "reward")
        requires, cotrain = kind.requirements(config), stages.get("cotrain", True)
        check_requirements(name, requires, setting, config, cotrain)
        if stages.get("clip") is not None and getattr(config, "absorbing", False):
            raise ValueError(
                f"'reward.clip' would clip the absorbing-state value of {name!r} "
                "(option 'absorbing'): leave one of them out"
            )
    seeds = np.random.SeedSequence(setting.seed).generate_state(len(options))
    made = {
        name: Term(create_reward_model(given, replace(setting, seed=int(seed))), weights[name])
        for (name, given), seed in zip(options.items(), seeds, strict=True)
    }
    return Reward(made, gamma=setting.gamma, **stages)
