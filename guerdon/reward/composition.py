"""The reward as the learner sees it: a weighted sum of terms, resolved when data is read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from guerdon.data.batch import Batch
from guerdon.reward.base import REWARDS, Metrics, RewardModel, Setting, create_reward_model
from guerdon.reward.controls import EnvReward
from guerdon.reward.guide import Scalars, adapted
from guerdon.reward.history import Past, before_in, over
from guerdon.reward.resolved import ResolvedBuffer
from guerdon.reward.scaling import ReturnScaler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guerdon.data import ReplayBuffer

STAGES = ("scale", "clip", "normalize", "cotrain")


class Term(NamedTuple):
    """One summand."""

    model: RewardModel
    weight: float


class Reward:
    """A weighted sum of reward models, and what is done to the sum.

    In every batch it resolves, ``rew`` is what the learner sees, ``rew_env`` what the environment
    paid, and ``rew_terms.<name>`` each term before its weight.

    Args:
        terms: The reward models by name, with their weights.
        scale: What the sum is multiplied with.
        clip: The bounds of the scaled sum, or None.
        normalize: Whether the sum is divided by the spread of its discounted return.
        gamma: The discount of that return.
        cotrain: Whether models are trained beside the policy; if not, they stay as they are.
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
    ) -> None:
        if not terms:
            raise ValueError("a reward needs one term or more: {type: env} is the environment's")
        self.terms = dict(terms)
        self.scale = scale
        self.clip = clip
        self.scaler = ReturnScaler(gamma) if normalize else None
        self.cotrain = cotrain
        self.models = [term.model for term in self.terms.values()]
        self._relabellers = [
            model for model in self.models if type(model).relabel is not RewardModel.relabel
        ]
        self._wrappers = [
            name
            for name, model in zip(self.terms, self.models, strict=True)
            if type(model).wrap_buffer is not RewardModel.wrap_buffer
        ]
        self._check_wrappers()
        self._decider = self._find_decider()
        self._pasts = {name: Past() for name, term in self.terms.items() if term.model.history}
        self._columns: dict[str, np.ndarray] = {}  # what episodic terms said, by the buffer's rows
        self._saw: tuple[Any, Any] | None = None  # the newest rewards of a learner, and their mask

    def _check_wrappers(self) -> None:
        """A term that adds to the buffer adds rows that were never collected here."""
        if not self._wrappers:
            return
        name, *others = self._wrappers
        for other, model in zip(self.terms, self.models, strict=True):
            if other in others or model.episodic or model.history or model in self._relabellers:
                raise ValueError(
                    f"the reward {name!r} reads more than the policy has done, which {other!r} "
                    "cannot be asked about: use one of them"
                )
        if self.scaler:
            raise ValueError(
                f"'reward.normalize' follows what the policy is paid, which for {name!r} is "
                "nothing: use 'reward.scale'"
            )

    def _find_decider(self) -> str | None:
        """The term that decides what is a success, if there is one."""
        names = [name for name, term in self.terms.items() if term.model.decides]
        if len(names) > 1:
            raise ValueError(
                f"the rewards {' and '.join(map(repr, names))} both decide when an episode ends: "
                "set 'terminate' of all but one to never"
            )
        return names[0] if names else None

    @property
    def decider(self) -> RewardModel | None:
        """The model that decides what is a success, if there is one."""
        return None if self._decider is None else self.terms[self._decider].model

    @property
    def judge(self) -> Any:
        """What says of a whole episode which frames are a success, if a term can; see `Judged`."""
        for model in self.models:
            if (judge := getattr(model, "judge", None)) is not None:
                return judge
        return None

    @property
    def scans(self) -> tuple[str, ...]:
        """The fields of a transition that `collect_data` needs, beside ``rew`` and `fields`."""
        return tuple(sorted({field for model in self.models for field in model.scans}))

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a transition that `resolve` needs, beside ``rew``."""
        ends = ("terminated", "truncated") if self._pasts else ()
        return tuple(sorted({*ends, *(field for model in self.models for field in model.fields)}))

    @property
    def plain(self) -> bool:
        """Whether it is nothing but the environment's own, scaled or clipped at most."""
        return all(isinstance(model, EnvReward) for model in self.models)

    @property
    def learns(self) -> bool:
        """Whether it wants `collect_data` and `train`."""
        in_order = bool(self._pasts) or any(model.episodic for model in self.models)
        fitted = self.cotrain and any(model.learns for model in self.models)
        return in_order or fitted or self.scaler is not None

    def setup(self, setting: Setting) -> None:
        """Tells every model what run it is for, each with a seed of its own."""
        seeds = np.random.SeedSequence(setting.seed).generate_state(len(self.terms))
        for (name, term), seed in zip(self.terms.items(), seeds, strict=True):
            model = term.model
            if self.cotrain and model.needs_log_prob and setting.log_prob is None:
                raise ValueError(
                    f"the reward {name!r} needs to know how likely actions are, which this policy "
                    "cannot say: use ppo, a2c or sac"
                )
            if model.off_policy and setting.on_policy:
                raise ValueError(
                    f"the reward {name!r} needs a policy with a replay buffer: use dqn, ddpg, td3 "
                    "or sac"
                )
            if self.clip is not None and model.absorbing:
                raise ValueError(
                    f"'reward.clip' would cut away what {name!r} pays for all the time after an "
                    "end (absorbing): leave one of them out"
                )
            model.setup(replace(setting, seed=int(seed)))

    def resolve(self, batch: Batch, rows: np.ndarray | None = None, buffer: Any = None) -> Batch:
        """The transitions with the reward that the learner shall believe; the input stays.

        Args:
            batch: What was read.
            rows: Which rows of the buffer these are; what episodic models said is found by them.
            buffer: The buffer.
        """
        if rows is not None:
            for model in self._relabellers:
                batch = model.relabel(batch, rows, buffer)
        terms = self._estimate(batch, rows, buffer)
        if self._decider is not None and "terminated" in batch:
            batch = batch.replace(terminated=batch.terminated | (terms[self._decider] > 0))
        rew = self._stages(self._sum(terms))
        self._saw = rew, batch.get("mask")
        return batch.replace(rew=rew, rew_env=batch.rew, rew_terms=Batch(**terms))

    def score(self, batch: Batch) -> Any:
        """What a learner would see as the reward of transitions that are in no buffer."""
        return self._stages(self._sum(self._estimate(batch, None)))

    def seen(self) -> Metrics:
        """Mean and spread of the rewards that were resolved last, unless they are the plain ones.

        Returns:
            ``reward/mean`` and ``reward/std``; nothing before the first.
        """
        if self._saw is None or self.plain:
            return {}
        rew, mask = self._saw
        rew = rew if mask is None else rew[mask]
        whole = {"correction": 0} if isinstance(rew, torch.Tensor) else {}
        return {"reward/mean": rew.mean(), "reward/std": rew.std(**whole)}

    def _estimate(
        self, batch: Batch, rows: np.ndarray | None, buffer: Any = None
    ) -> dict[str, Any]:
        terms = {}
        for name, term in self.terms.items():
            seen, model = batch, term.model
            if model.episodic and rows is not None:
                seen = seen.replace(scanned=self._columns[name][rows])
            if model.history and "cut" in batch:  # a rollout, which goes on from the one before
                seen = seen.replace(before=self._pasts[name].before(batch, model))
            elif model.history and rows is not None:
                seen = seen.replace(before=before_in(buffer, rows, batch.get("mask"), model))
            terms[name] = model.estimate(seen).rew
        return terms

    def _sum(self, terms: Mapping[str, Any]) -> Any:
        total: Any = None
        for name, rew in terms.items():
            weight = self.terms[name].weight
            term = rew if weight == 1.0 else weight * rew
            total = term if total is None else total + term
        return total

    def _stages(self, rew: Any) -> Any:
        scale = self.scale * (self.scaler.scale if self.scaler else 1.0)
        if scale != 1.0:
            rew = scale * rew
        return rew if self.clip is None else rew.clip(*self.clip)

    def buffer(self, buffer: Any) -> Any:
        """What an off-policy policy shall read from: the collector's buffer, or more than it."""
        for name in self._wrappers:
            buffer = self.terms[name].model.wrap_buffer(buffer)
        return buffer

    def view(self, buffer: ReplayBuffer) -> ResolvedBuffer:
        """The buffer as the learner shall see it."""
        return ResolvedBuffer(buffer, self)

    def collect_data(self, data: Batch, rows: np.ndarray | None = None) -> None:
        """Takes a fresh rollout [T, B, ...] in time order, with ``mask`` and ``cut``.

        Args:
            data: Beside `fields` it has to have ``rew``, ``terminated`` and ``truncated``.
            rows: Where the buffer holds them [T, B]; episodic terms need to know.
        """
        if not isinstance(data.mask, np.ndarray):  # the buffer is on a device
            data = data.to_numpy()
        mask = np.asarray(data.mask)
        for name, past in self._pasts.items():
            past.follow(data, self.terms[name].model)
        for name, term in self.terms.items():
            if term.model.episodic and rows is not None:
                self._store(name, rows, mask, term.model.scan(data))
        shown = data
        if self._decider is not None and rows is not None:
            mask = mask & ~(self._columns[self._decider][rows] < 0)
            shown = data.replace(mask=mask)  # to all but the decider itself
        for model in self.models if self.cotrain else ():
            model.collect_data(data if model.decides else shown)
        if self.scaler:
            rew = np.asarray(self._sum(self._estimate(data, rows)))
            self.scaler.collect(rew, over(data), mask)

    def past(self, rows: np.ndarray) -> np.ndarray:
        """Those of the rows that `collect_data` has just seen that come after a success.

        They are of no episode any more: nobody shall learn from them.
        """
        if self._decider is None:
            return np.zeros(0, np.int64)
        past: np.ndarray = rows[self._columns[self._decider][rows] < 0]
        return past

    def _store(self, name: str, rows: np.ndarray, mask: np.ndarray, values: np.ndarray) -> None:
        """Keeps what a term said; there is room for rows that are no data, which are read, too."""
        column = self._columns.get(name, np.zeros(0, np.float32))
        missing = int(rows.max(initial=-1)) + 1 - len(column)
        if missing > 0:
            column = np.append(column, np.zeros(max(missing, len(column)), np.float32))
        column[rows[mask]] = values[mask]
        self._columns[name] = column

    @property
    def pretrains(self) -> bool:
        """Whether a model can be trained before the policy acts."""
        return any(model.pretrains for model in self.models)

    def pretrain(self) -> Metrics:
        """Fits every term before the policy acts at all."""
        return self._metrics({name: term.model.pretrain() for name, term in self.terms.items()})

    def train(self) -> Metrics:
        """Fits every term to what it has collected.

        Returns:
            Metrics under ``reward/<term>/``; none if no term had anything to do.
        """
        if not self.cotrain:
            return {}
        return self._metrics({name: term.model.train() for name, term in self.terms.items()})

    def _metrics(self, by_term: Mapping[str, Metrics | None]) -> Metrics:
        return {
            f"reward/{name}/{key}": value
            for name, metrics in by_term.items()
            for key, value in (metrics or {}).items()
        }

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """Lets every term forget collected data, if it is time to."""
        for model in self.models:
            model.clear_data(iter)

    def break_off(self, env_ids: np.ndarray | None = None) -> None:
        """The running episodes of some environments (None: all) will not go on."""
        for model in self.models:
            model.break_off(env_ids)
        for past in self._pasts.values():
            past.break_off(env_ids)
        if self.scaler:
            self.scaler.break_off(env_ids)

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on."""
        state: dict[str, Any] = {
            "terms": {name: term.model.state_dict() for name, term in self.terms.items()},
            "columns": {name: column.copy() for name, column in self._columns.items()},
        }
        return state | ({"scaler": self.scaler.state_dict()} if self.scaler else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        if list(state["terms"]) != list(self.terms):
            raise ValueError(
                f"the saved reward has the terms {list(state['terms'])}, "
                f"but this one has {list(self.terms)}"
            )
        for name, term in self.terms.items():
            term.model.load_state_dict(state["terms"][name])
        self._columns = {name: np.array(column) for name, column in state["columns"].items()}
        if self.scaler:
            self.scaler.load_state_dict(state["scaler"])


def make_reward(
    section: Mapping[str, Any] | RewardModel,
    *,
    gamma: float = 0.99,
    device: str = "cpu",
    tb_logger: Any = None,
) -> Reward:
    """The reward of a config section: ``{type: NAME, …}``, or ``{terms: {NAME: {weight: …}}}``.

    A model that was made already is the only term.
    """
    if isinstance(section, RewardModel):
        return Reward({section.config.type or "model": Term(section, 1.0)}, gamma=gamma)
    section = dict(section)
    stages = {name: section.pop(name) for name in STAGES if name in section}
    terms = section.pop("terms", None)
    if terms is None:
        name = section.get("type", "env")
        terms = {name: section} | ({"env": {}} if REWARDS.get(name).with_env_for(section) else {})
    elif section:
        raise ValueError(f"a reward with terms takes its options in them, not beside: {section}")
    made = {}
    for name, options in terms.items():
        options = {"type": name, **(options or {})}
        weight = options.pop("weight", 1.0)
        scalars = Scalars()
        model = create_reward_model(options, device, tb_logger or scalars)
        made[name] = Term(adapted(model, scalars), weight)
    return Reward(made, gamma=gamma, **stages)
