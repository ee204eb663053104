"""The rows of docs/reward_results.md: what is trained, on which reward, and with which goal."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from trials import SEEDS, Row, config_of

from guerdon.config import sources

CLONES = ("bc", "iqlearn")
"""Policies that learn from demonstrations without a reward model."""
SUBSAMPLE = 20


@dataclass(frozen=True)
class Section:
    """Rows of one table."""

    title: str
    text: str
    rows: tuple[Row, ...]
    demonstrations: tuple[str, str] | None = None
    """Demonstrations of the expert and of random actions, which normalise returns."""


@dataclass(frozen=True)
class Model:
    """A model of an imitation table."""

    name: str
    preset: str
    seconds: float
    """Time of a seed on one core, roughly."""
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    """An environment, demonstrations that are too few to be cloned, and a goal."""

    env: str
    episodes: int
    goal: float
    seeds: int = SEEDS

    def imitation(
        self, models: tuple[Model, ...], uncontrolled: tuple[str, ...] = ()
    ) -> tuple[Row, ...]:
        """Return a row for each model, and its controls: random demonstrations, constant reward.

        Args:
            models: The models; the first one clones.
            uncontrolled: Names of models without random demonstrations.
        """
        clone = self.row(models[0])
        rows, constants = [clone], dict[Any, Row]()
        for model in models[1:]:
            controls = [] if model.name in uncontrolled else [self.control(model)]
            names = [row.name for row in controls]
            if model.name not in CLONES:
                fixed = self.constant(model)
                if any(row.preset == fixed.preset for row in constants.values()):
                    fixed = replace(fixed, variant=f"{model.name}_constant")
                alike = constants.setdefault((fixed.preset, fixed.overrides), fixed)
                names.append(alike.name)
            row = replace(self.row(model), baseline=clone.name, controls=tuple(names))
            rows += [row, *controls]
        whole = replace(clone, variant="all", overrides=(), is_control=True)
        return whole, *rows, *constants.values()

    def control(self, model: Model) -> Row:
        """Return the row of a model with random demonstrations."""
        row = self.row(model, f"zoo:{self.env}_random")
        variant = f"{row.variant}_random".lstrip("_")
        return replace(row, variant=variant, is_control=True)

    def constant(self, model: Model) -> Row:
        """Return the row of a model's policy, with all its options, and a constant reward."""
        row, chosen = self.row(model), ("reward=constant",)
        preset = row.preset.removesuffix(f"_{model.name}")
        if preset not in sources.options("preset"):
            preset = row.preset  # whose options are those of the row, too
        own, usual = config_of(row), config_of(Row(preset, overrides=chosen))
        if own["policy"]["model"]["normalize_obs"] == "demonstrations":
            chosen += self.data("reward", f"zoo:{self.env}")
        before = dict(sources.leaves(usual))
        options = tuple(
            f"{key}={json.dumps(value)}"
            for key, value in sources.leaves(own)
            if not key.startswith("reward.") and before.get(key) != value
        )
        overrides = (*chosen, *options)
        return replace(row, preset=preset, overrides=overrides, variant="constant", is_control=True)

    def data(self, section: str, path: str) -> tuple[str, ...]:
        """Return the overrides that choose demonstrations."""
        return (
            f"{section}.expert_data_path={path}",
            f"{section}.episodes={self.episodes}",
            f"{section}.subsample={SUBSAMPLE}",
        )

    def row(self, model: Model, path: str | None = None) -> Row:
        """Return the row of a model."""
        named = model.preset.endswith(f"_{model.name}")
        section = "policy" if model.name in CLONES else "reward"
        chosen = () if named else (f"reward={model.name}",)
        data = self.data(section, path or f"zoo:{self.env}")
        return Row(
            model.preset,
            self.goal,
            self.seeds,
            (*chosen, *data, *model.overrides),
            "" if named else model.name,
            seconds=model.seconds,
        )


@dataclass(frozen=True)
class Transfer:
    """Policies trained from scratch on frozen rewards, in the same and in changed dynamics."""

    title: str
    text: str
    goal: float
    learned: dict[str, Row]
    """Rows whose learned rewards are frozen, by label."""
    others: dict[str, tuple[str, tuple[str, ...]]]
    """Presets and overrides to compare with, by label."""
    changes: dict[str, str]
    """Arguments of the environment, by label; the first has none."""
    preset: str
    """Preset of the policies that are trained on learned rewards."""
    overrides: tuple[str, ...]
    claims: tuple[str, ...] = ()
    """Labels of rewards that are said to be robust to changed dynamics."""

    @property
    def cells(self) -> dict[str, dict[str, Row]]:
        """Rows by label and change."""
        made: dict[str, dict[str, Row]] = {}
        for number, (change, kwargs) in enumerate(self.changes.items()):
            changed = (f"env.kwargs={kwargs}",) if kwargs else ()
            for label, (preset, options) in self.others.items():
                row = Row(preset, self.goal, overrides=(*options, *changed), is_control=True)
                made.setdefault(label, {})[change] = self._named(row, label, number)
            for label, source in self.learned.items():
                row = Row(self.preset, self.goal, overrides=(*self.overrides, *changed))
                row = replace(row, reward_of=source)
                made.setdefault(label, {})[change] = self._named(row, label, number)
        return made

    @staticmethod
    def _named(row: Row, label: str, number: int) -> Row:
        variant = f"on_{label}_{number}".replace(" ", "_")
        return replace(row, variant=variant, seconds=13)

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows."""
        cells = (row for rows in self.cells.values() for row in rows.values())
        return (*self.learned.values(), *cells)


CARTPOLE = Problem("cartpole_fixed", 1, 475.0)
PENDULUM = Problem("pendulum", 10, -200.0)
LUNARLANDER = Problem("lunarlander", 3, 200.0)
HOPPER = Problem("hopper", 1, 2929.0, seeds=3)

ANNEALED = ("policy.anneal=true",)
FIXED = ("run.max_steps=200_000",)
LANDING = ("run.max_steps=500_000",)
SHORT = ("run.max_steps=10_000",)
# The reward is 0 or 1, so that a temperature that is tuned from 1 downwards is high for most of it.
COOL = ("policy.temperature=0.05", "policy.learning_rate=3e-4")
NORMALIZED = ("policy.model.normalize_obs=true", "reward.normalize=true")
RANDOM_V1 = "reward.expert_data_path=zoo:cartpole_random"
EARLY = "reward.expert_data_path=zoo:pendulum_early"
NOISY = (
    "reward.expert_data_path="
    "'expert:benchmarks/pendulum_clone.yaml?episodes=10&noise=0,0.25,0.5,0.75,1'"
)

IMITATION = """There are so few demonstrations that cloning them is hard: every 20th transition \
of {episodes}. This choice was made by the returns of `bc` alone, before any other model was \
trained on them. `{env}_bc_all` clones all demonstrations. A row `_random` has as many \
demonstrations of random actions instead, with the same options, and a row `_constant` a reward of \
1 for the same policy with the same options, which also normalises observations by the \
demonstrations where the models do. {more}"""

CHANGED = """The first options gave a mean return of {first}, on the same seeds, 0 to 4. \
{options} were then changed by runs of other seeds, from 100 on, judged by their true returns, \
before the rows here were trained. """


def learner(name: str, overrides: tuple[str, ...] = FIXED) -> Model:
    """Return a model of CartPoleFixed."""
    return Model(name, f"cartpole_fixed_ppo_{name}", 15, overrides)


ON_ALL = {
    name: Row(
        f"cartpole_fixed_ppo_{name}", CARTPOLE.goal, variant="all", overrides=FIXED, seconds=15
    )
    for name in ("gail", "airl", "red", "pwil", "pdeil", "gcl", "fairl", "trex", "drex")
}
ON_ALL["airl without shaping"] = replace(
    ON_ALL["airl"], overrides=("reward.shaping=false", *FIXED), variant="unshaped_all"
)
ALIKE = (*ANNEALED, *FIXED)
ON_ALL["preference"] = Row(
    "cartpole_fixed_ppo",
    CARTPOLE.goal,
    variant="preference_all",
    overrides=("reward=preference", *ALIKE),
    seconds=15,
)
SURVIVAL = "cartpole_ppo_constant"
PLAIN_SEA = ("deepsea_ppo", "deepsea_ppo_normalized")
PLAIN_DOOR = ("minigrid_doorkey_ppo", "minigrid_doorkey_ppo_normalized")


def better(model: str, goal: float, data: str, clone: str) -> tuple[Row, Row]:
    """Return a row whose goal is to exceed the demonstrator, and its control."""
    rows = [
        Row(
            "pendulum_ppo",
            goal,
            overrides=(*chosen, data, *ANNEALED),
            variant=variant,
            seconds=30,
            is_control=chosen != (f"reward={model}",),
        )
        for variant, chosen in (
            (model, (f"reward={model}",)),
            (f"{model}_shuffled", ("reward=trex", "reward.rank_by=random")),
        )
    ]
    return replace(rows[0], baseline=clone, controls=(rows[1].name,)), rows[1]


SECTIONS: tuple[Section | Transfer, ...] = (
    Section(
        "Imitation on CartPole with a fixed horizon",
        "Every episode has 500 steps, and the true return counts those before the pole falls, so "
        "that the length of an episode reveals nothing. 200,000 steps of ppo, 40,000 of sqil with "
        "dqn, 20,000 of iqlearn. The goal is that of CartPole-v1; GAIL and AIRL of the library "
        "imitation reach 500 after 800,000 and 2,000,000 steps with 60 whole episodes, IQ-Learn of "
        "its authors with every 20th transition of one episode. "
        + CHANGED.format(
            first="220 with sqil",
            options="The length, temperature, learning rate and loss of sqil, and the length, "
            "updates, learning rate and loss of iqlearn,",
        )
        + "Versions of `airl` without a gradient penalty of its potential, and of `red` with "
        "another choice of sigma, had means of 25.9 and 108.8 on these seeds; they were changed by "
        "runs of other seeds, too. A first version of airl's penalty reached 500 here as well, but "
        "was worse on Pendulum with seeds 100 to 109, by which the present one was chosen. "
        + IMITATION.format(episodes="one episode, 25 in all", env=CARTPOLE.env, more=""),
        CARTPOLE.imitation(
            (
                Model("bc", "cartpole_fixed_bc", 8),
                *map(learner, ("gail", "airl", "red", "pwil", "pdeil", "gcl", "fairl")),
                Model("sqil", "cartpole_fixed_dqn_sqil", 15),
                Model("iqlearn", "cartpole_fixed_iqlearn", 30),
            ),
        ),
        ("zoo:cartpole_fixed", "zoo:cartpole_fixed_random"),
    ),
    Section(
        "Imitation on Pendulum-v1",
        "Episodes have 200 steps. 200,000 steps of ppo; 10,000 of sqil, with sac, and of iqlearn. "
        "The goal is that at which the other result pages count Pendulum as solved. "
        + CHANGED.format(
            first="-400 with sqil, and -1275 with iqlearn",
            options="The temperature and learning rate of sqil, and the loss of iqlearn,",
        )
        + IMITATION.format(episodes="ten episodes, 100 in all", env=PENDULUM.env, more=""),
        PENDULUM.imitation(
            (
                Model("bc", "pendulum_bc", 8),
                Model("gail", "pendulum_ppo", 22, ANNEALED),
                Model("airl", "pendulum_ppo", 22, ANNEALED),
                Model("red", "pendulum_ppo", 22, ANNEALED),
                Model("pwil", "pendulum_ppo", 22, ANNEALED),
                Model("sqil", "pendulum_sac", 90, (*SHORT, *COOL)),
                Model("iqlearn", "pendulum_iqlearn", 120, SHORT),
            ),
        ),
        ("zoo:pendulum", "zoo:pendulum_random"),
    ),
    Section(
        "Imitation on LunarLander-v3",
        "Episodes end at a crash and after a landing, so `gail` scores absorbing states, too. "
        "Rewards of `airl` have either sign; those of `red` and `pwil` are never negative, which "
        "rewards staying in the air. Demonstrations are landings of a rule "
        "(`guerdon.envs.experts:land`); the goal is the return at which the environment counts as "
        "solved, and which GAIL of DI-engine reaches. 500,000 steps of ppo, 40,000 of sqil with "
        "dqn, 50,000 of iqlearn, whose reward is negative for most transitions of the policy, so "
        "that with few demonstrations an early end costs little. Returns of `sqil` rise and fall, "
        "since it labels good transitions of the policy 0, too: its results depend on the seed. "
        + CHANGED.format(
            first="-670 with sqil, and -701 with iqlearn",
            options="The length, temperature, learning rate, loss and normalisation of sqil, and "
            "the loss and normalisation of iqlearn,",
        )
        + IMITATION.format(episodes="three episodes, 34 in all", env=LUNARLANDER.env, more=""),
        LUNARLANDER.imitation(
            (
                Model("bc", "lunarlander_bc", 10),
                *(
                    Model(name, f"lunarlander_ppo_{name}", 35, LANDING)
                    for name in ("gail", "airl", "red", "pwil")
                ),
                Model("sqil", "lunarlander_dqn_sqil", 20),
                Model("iqlearn", "lunarlander_iqlearn", 60),
            ),
        ),
        ("zoo:lunarlander", "zoo:lunarlander_random"),
    ),
    Section(
        "Imitation on Hopper-v5",
        "MuJoCo, 100,000 steps of sac, 3 seeds. Episodes end when the hopper falls, so `gail` "
        "scores absorbing states, too. The goal is 90 % of the demonstrator's return; GAIL reaches "
        "92 % from one demonstration in the paper of IQ-Learn. "
        + IMITATION.format(
            episodes="one episode, 50 in all",
            env=HOPPER.env,
            more="`sqil` has no control with random demonstrations here.",
        ),
        HOPPER.imitation(
            (
                Model("bc", "hopper_bc", 12),
                Model("gail", "hopper_sac_gail", 560),
                Model("sqil", "hopper_sac_sqil", 460),
            ),
            uncontrolled=("sqil",),
        ),
        ("zoo:hopper", "zoo:hopper_random"),
    ),
    Transfer(
        "Transfer of learned rewards",
        "Each model learns a reward on CartPole with a fixed horizon from ten whole episodes, with "
        "a policy that it trains (`learned with`); `trex` and `drex` learn theirs from ranked "
        "episodes of worse policies, as their presets say, and `preference` from 200 comparisons "
        "by the true return. The reward is then frozen, and a new policy is "
        "trained from scratch on it: in the same environment, with a pole of ten times the mass, "
        "with twice the gravity, and with start states around the position 1.2 instead of 0; the "
        "cart may move to 2.4. Compared with: the true reward, a constant reward, and the clone of "
        "the demonstrations, which is not trained there. 200,000 steps of ppo, 5 seeds; each has "
        "its own reward. Returns are the environment's, with 95 % bootstrap intervals of the mean; "
        "in brackets, the seeds that reach the goal, 475. Policies on frozen rewards do not "
        "normalise observations; in `learned with`, they normalise them by the demonstrations "
        "(not with `trex`, `drex` and `preference`). The row `true reward` has the same options as "
        "those on frozen rewards and reaches the goal in the same environment, so that they do "
        "not prevent learning. Policies that are learned without a reward model (`bc`, `sqil`, "
        "`iqlearn`) have no reward to be frozen.",
        CARTPOLE.goal,
        ON_ALL,
        {
            "true reward": ("cartpole_fixed_ppo", ALIKE),
            "constant": ("cartpole_fixed_ppo", ("reward=constant", *ALIKE)),
            "clone": ("cartpole_fixed_bc", ()),
        },
        {
            "same": "",
            "heavier pole": "{pole_mass: 1.0}",
            "gravity": "{gravity: 19.6}",
            "shifted start": "{start: [1.2, 0.0, 0.0, 0.0]}",
        },
        "cartpole_fixed_ppo",
        ALIKE,
        claims=("airl",),
    ),
    Section(
        "Better than the demonstrator",
        "Demonstrators are policies of ppo that have not learned enough; their episodes are "
        "complete. `trex` gets 24 episodes of six checkpoints, ranked by return; its goal is the "
        "best of these episodes (-633). For `drex`, ten unranked episodes of one later checkpoint "
        "are cloned, and 50 episodes of the clone, in which 0 to 100 % of the actions are random, "
        "are ranked by that share; its goal is the mean return of the demonstrator (-491). "
        "`shuffled` has a random ranking of the same episodes; `bc_early` clones the episodes of "
        "`trex`, and `bc_novice` the demonstrator of `drex`. 200,000 steps of ppo on Pendulum-v1.",
        (
            *(
                Row(
                    "pendulum_bc",
                    goal,
                    overrides=(f"policy.expert_data_path=zoo:pendulum_{data}",),
                    variant=data,
                    seconds=8,
                    is_control=True,
                )
                for data, goal in (("early", -633.0), ("novice", -491.0))
            ),
            *better("trex", -633.0, EARLY, "pendulum_bc_early"),
            *better("drex", -491.0, NOISY, "pendulum_bc_novice"),
        ),
        ("zoo:pendulum", "zoo:pendulum_random"),
    ),
    Section(
        "CartPole-v1, where survival is rewarded",
        "Here an episode ends when the pole falls. A reward that is never negative rewards "
        "survival, so that the policy balances whatever the demonstrations show; one that can be "
        "negative may reward termination. See the rows with random demonstrations, a constant, "
        "`log_d` and `airl`. Results here say nothing of imitation.",
        (
            Row("cartpole_ppo_gail", 475.0, controls=("cartpole_ppo_gail_random", SURVIVAL)),
            Row("cartpole_ppo_gail", 475.0, 5, (RANDOM_V1,), "random", is_control=True),
            Row("cartpole_ppo_gail", 475.0, 5, ("reward.form=log_d",), "log_d"),
            Row(
                "cartpole_ppo",
                475.0,
                variant="airl",
                overrides=("reward=airl", "reward.expert_data_path=zoo:cartpole"),
            ),
            Row("cartpole_ppo", 475.0, 5, ("reward=constant",), "constant", is_control=True),
            Row("cartpole_dqn_gail", 475.0, controls=("cartpole_dqn_gail_random",)),
            Row("cartpole_dqn_gail", 475.0, 5, (RANDOM_V1,), "random", is_control=True),
        ),
    ),
    Section(
        "Preferences",
        "20,000 steps of sac on Pendulum-v1, with a synthetic teacher that compares 200 pairs of "
        "segments; in the control, half of its answers are wrong, at random. The library imitation "
        "reports a mean of -196.5 and a median of -165.5 over 100 runs with as many comparisons.",
        (
            Row(
                "pendulum_sac_preference",
                -200.0,
                seconds=170,
                controls=("pendulum_sac_preference_coin",),
            ),
            Row(
                "pendulum_sac_preference",
                -200.0,
                overrides=("reward.teacher.mistake=0.5",),
                variant="coin",
                seconds=170,
                is_control=True,
            ),
        ),
    ),
    Section(
        "Curiosity",
        "DeepSea with 20 by 20 cells: one of a million action sequences reaches the treasure, and "
        "every step towards it has a small negative reward. `ppo` with and without a bonus; "
        "200,000 steps.",
        (
            Row("deepsea_ppo", 0.5, is_control=True),
            Row("deepsea_ppo", 0.5, 5, NORMALIZED, "normalized", is_control=True),
            *(
                Row(f"deepsea_ppo_{model}", 0.5, controls=PLAIN_SEA)
                for model in ("rnd", "icm", "ngu")
            ),
        ),
    ),
    Section(
        "Curiosity in MiniGrid",
        "DoorKey-8x8 has no reward until a key is found and a door opened; Empty-8x8 is an empty "
        "room, for comparison. Observations are the 7 by 7 cells in front of the agent. `ppo` "
        "without a bonus solves DoorKey on some seeds, but DeepSea (above) on none.",
        (
            Row("minigrid_empty_ppo", 0.8, is_control=True),
            *(
                Row(f"minigrid_empty_ppo_{model}", 0.8, controls=("minigrid_empty_ppo",))
                for model in ("rnd", "icm", "ngu")
            ),
            Row("minigrid_doorkey_ppo", 0.8, is_control=True),
            Row("minigrid_doorkey_ppo", 0.8, 5, NORMALIZED, "normalized", is_control=True),
            *(
                Row(f"minigrid_doorkey_ppo_{model}", 0.8, controls=PLAIN_DOOR)
                for model in ("rnd", "icm", "ngu")
            ),
        ),
    ),
    Section(
        "Hindsight experience replay",
        "BitFlip with 15 bits: reward -1 per step until all bits equal the goal, 15 steps at most, "
        "about -6.5 at best. `dqn` with and without relabelled goals; 150,000 steps.",
        (
            Row("bitflip_dqn", -8.0, is_control=True),
            Row("bitflip_dqn_her", -8.0, controls=("bitflip_dqn",)),
        ),
    ),
)
