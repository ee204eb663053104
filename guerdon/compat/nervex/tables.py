"""Keys and names of nerveX and DI-engine, and what they are in guerdon; see `translate`.

Keys of the section ``policy`` are written without it, and without ``algo``: ``learn.nstep`` is
``policy.learn.nstep`` and ``policy.learn.algo.nstep``. A key without a part is found in any of
`PARTS`, too: ``nstep`` is also ``policy.nstep`` and ``policy.collect.algo.nstep``.
"""

from collections.abc import Callable
from typing import Any

PARTS = ("learn", "collect", "eval", "command", "other")
PACKAGES = ("nervex", "app_zoo", "ding", "dizoo")

KEYS = {
    "env.env_manager_type": "env.backend",
    "env_manager.type": "env.backend",
    "env.actor_env_num": "env.n_envs",
    "env.collector_env_num": "env.n_envs",
    "env.evaluator_env_num": "eval.n_envs",
    "env.n_evaluator_episode": "eval.episodes",
    "env.stop_value": "eval.target_return",
    "env.max_step": "env.max_episode_steps",
    "env.norm_obs.use_norm": "policy.model.normalize_obs",
    "env.norm_reward.use_norm": "reward.normalize",
    "env.rew_clip": "reward.clip",
    "evaluator.n_episode": "eval.episodes",
    "evaluator.stop_val": "eval.target_return",
    "evaluator.eval_freq": "eval.every",
    "eval.evaluator.eval_freq": "eval.every",
    "eval.evaluator.n_episode": "eval.episodes",
    "eval.evaluator.stop_value": "eval.target_return",
    "exp_name": "run.name",
    "use_cuda": "run.device",
    "cuda": "run.device",
    "actor.n_sample": "collect.n_step",
    "actor.n_episode": "collect.n_episode",
    "collect.n_sample": "collect.n_step",
    "collect.n_episode": "collect.n_episode",
    "learn.init_data_count": "collect.warmup_steps",
    "random_collect_size": "collect.warmup_steps",
    "replay_buffer.meta_maxlen": "collect.buffer_size",
    "replay_buffer.*.meta_maxlen": "collect.buffer_size",
    "replay_buffer.replay_buffer_size": "collect.buffer_size",
    "other.replay_buffer.replay_buffer_size": "collect.buffer_size",
    "learn.batch_size": "learn.batch_size",
    "learn.epoch_per_collect": "learn.repeat",
    "learn.train_step": "learn.updates_per_collect",
    "learn.update_per_collect": "learn.updates_per_collect",
    "learner.hook.log_show.ext_args.freq": "run.log_every",
    "learn.learner.hook.log_show_after_iter": "run.log_every",
    "learner.load_path": "policy.init_from",
    "learn.learner.load_path": "policy.init_from",
    "learn.learner.hook.load_ckpt_before_run": "policy.init_from",
    "learn.pretrained_model_path": "policy.init_from",
    "discount_factor": "policy.gamma",
    "nstep": "policy.n_step",
    "use_priority": "policy.prioritized",
    "priority": "policy.prioritized",
    "replay_buffer.*.alpha": "policy.alpha",
    "replay_buffer.*.beta": "policy.beta",
    "other.replay_buffer.alpha": "policy.alpha",
    "other.replay_buffer.beta": "policy.beta",
    "command.eps.*": "policy.epsilon.*",
    "other.eps.*": "policy.epsilon.*",
    "learn.learning_rate": "policy.learning_rate",
    "learn.learning_rate_q": "policy.learning_rate",
    "learn.learning_rate_critic": "policy.learning_rate",
    "learn.learning_rate_actor": "policy.learning_rate",
    "learn.learning_rate_policy": "policy.learning_rate",
    "learn.learning_rate_value": "policy.learning_rate",
    "learn.learning_rate_alpha": "policy.learning_rate",
    "learn.lr_scheduler.min_lr_lambda": "policy.anneal",
    "learn.grad_clip_value": "policy.max_grad_norm",
    "learn.grad_norm": "policy.max_grad_norm",
    "learn.target_update_freq": "policy.target_update_every",
    "learn.target_theta": "policy.tau",
    "learn.value_weight": "policy.value_coefficient",
    "learn.entropy_weight": "policy.entropy_coefficient",
    "learn.clip_ratio": "policy.clip_range",
    "learn.use_adv_norm": "policy.normalize_advantage",
    "learn.adv_norm": "policy.normalize_advantage",
    "learn.value_norm": "reward.normalize",
    "gae_lambda": "policy.gae_lambda",
    "collect.noise_sigma": "policy.exploration_noise",
    "learn.use_noise": "policy.target_noise",
    "learn.noise": "policy.target_noise",
    "learn.noise_sigma": "policy.target_noise",
    "learn.noise_range.max": "policy.target_noise_clip",
    "learn.actor_update_freq": "policy.actor_every",
    "model.use_twin_critic": "policy.n_critics",
    "model.twin_critic": "policy.n_critics",
    "model.use_twin_q": "policy.n_critics",
    "learn.use_twin_critic": "policy.n_critics",
    "learn.use_twin_q": "policy.n_critics",
    "learn.is_auto_alpha": "policy.temperature",
    "learn.auto_alpha": "policy.temperature",
    "learn.alpha": "policy.temperature",
    "learn.target_entropy": "policy.target_entropy",
    "model.hidden_dim_list": "policy.model.hidden",
    "model.encoder_hidden_size_list": "policy.model.hidden",
    "model.embedding_dim": "policy.model.hidden",
    "model.actor_head_hidden_size": "policy.model.hidden",
    "model.critic_head_hidden_size": "policy.model.hidden",
    "model.head_kwargs.dueling": "policy.model.dueling",
    "model.share_encoder": "policy.model.share_encoder",
    "collect.her_strategy": "reward.strategy",
    "collect.her_replay_k": "reward.ratio",
    "other.her.her_strategy": "reward.strategy",
    "other.her.her_replay_k": "reward.ratio",
}
"""guerdon's keys. Of several that are one here, the first of this list counts."""

IN_UPDATES = {
    "evaluator.eval_freq",
    "eval.evaluator.eval_freq",
    "command.eps.decay",
    "learner.hook.log_show.ext_args.freq",
    "learn.learner.hook.log_show_after_iter",
}
"""Keys that count updates; guerdon's count environment steps."""

SPACES = "spaces and networks follow the environment"
_OWN = "the class of the policy defines it"
_ROWS = "transitions are stored one by one, and read with what follows them"
_LOG = "guerdon writes its own log, checkpoints and videos"
_PROCESSES = "environment processes need no options for it"
_LOSS = "the loss has no such term"
_LOADED = "only runs of guerdon can be started from, with policy.init_from=RUN"
_HIDDEN = "networks have no such part"
_COUNTED = "env.n_envs and eval.n_envs count environments"
_GPUS = "several GPUs are not there yet: one is used"
_AGENTS = "several agents, leagues and workers are not there yet"
_DEMONSTRATIONS = "expert_data_path has the demonstrations"
IMAGES = "the encoder of images has fixed sizes"
UNKNOWN = "not known to guerdon"

DROPPED = {
    "on_policy": _OWN,
    "model.obs_*": SPACES,
    "model.action_*": SPACES,
    "model.*_obs_shape": SPACES,
    "model.contin*": SPACES,
    "model.encoder_kwargs.*": SPACES,
    "model.model_type": SPACES,
    "model.import_names": SPACES,
    "action_space": SPACES,
    "continuous": SPACES,
    "model.*": _HIDDEN,
    "noisy_net": _HIDDEN,
    "traj_len": _ROWS,
    "actor.traj_len": _ROWS,
    "unroll_len": _ROWS,
    "burnin_step": _ROWS,
    "collect.collector.get_train_sample": _ROWS,
    "collector.type": _ROWS,
    "replay_buffer.type": _ROWS,
    "replay_buffer.import_names": _ROWS,
    "learn.ignore_done": "terminations and time limits are told apart",
    "actor.*print_freq": _LOG,
    "collect.collector.*": _LOG,
    "collect.save_path": _LOG,
    "collect.data_type": _LOG,
    "learner.hook.log_show.*": "",  # its ``freq`` is above
    "learner.hook.*": _LOG,
    "learn.learner.hook.*": _LOG,
    "eval.evaluator.render.*": _LOG,
    "env.replay_path": _LOG,
    "env.save_replay_gif": _LOG,
    "env.exp_name": _LOG,
    "env.manager.*": _PROCESSES,
    "env.*_batch_size": _PROCESSES,
    "env.env_wrapper": "env.wrappers names wrappers",
    "env.is_train": "reward.clip clips the rewards of training alone",
    "env_num": _COUNTED,
    "collector_env_num": _COUNTED,
    "*replay_buffer.*": "the replay buffer has no such option",
    "priority_IS_weight": "prioritized replay always has importance weights",
    "learn.weight_deca*": "Adam has no weight decay",
    "learn.betas": "the betas of Adam are PyTorch's",
    "learn.lr_scheduler.*": "policy.anneal lasts as long as the run",
    "learn.grad_clip_type": "gradients are clipped by their norm",
    "learn.noise_range.min": "target noise is clipped on both sides alike",
    "learn.reparameterization": _LOSS,
    "learn.policy_*_reg_weight": _LOSS,
    "learn.value_network": _LOSS,
    "learn.kl_*": _LOSS,
    "learn.nstep_return": _LOSS,
    "collect.collector_logit": _LOSS,
    "recompute_adv": "advantages are always computed when data is read",
    "collect.use_her": "her_strategy chooses the reward her",
    "other.her.*": "learn.batch_size counts transitions of all episodes",
    "env.*act_scale": "actions are scaled to the bounds of their space, or clipped to them",
    "env.norm_reward.reward_discount": "policy.gamma is used",
    "load_path": _LOADED,
    "model_path": _LOADED,
    "state_dict_path": _LOADED,
    "learn.resume_training": _LOADED,
    "multi_gpu": _GPUS,
    "use_distributed": _GPUS,
    "multi_agent": _AGENTS,
    "*agent_num": _AGENTS,
    "*league*": _AGENTS,
    "expert_random_collect_size": _DEMONSTRATIONS,
}
"""Keys without a counterpart, and why; not reported if that is empty."""

FIXED: dict[str, dict[str, Any]] = {
    "dqn": {"policy.huber": False},
    "ppo": {"policy.model.normalize_obs": False},
}
"""What their policies always do, and guerdon's by option."""

SPELLINGS = {"aynsc_subprocess": "async_subprocess", "env_pool": "auto", "gym_vector": "auto"}
"""Backends; the first is the tutorial's spelling."""


def _if_flag(value: Any, on: Any, off: Any) -> Any:
    return (on if value else off) if isinstance(value, bool) else value


CONVERTED: dict[str, Callable[[Any], Any]] = {
    "env.backend": lambda name: SPELLINGS.get(name, name),
    "run.device": lambda cuda: "auto" if cuda else "cpu",
    "reward.normalize": lambda on: on or None,
    "reward.clip": lambda on: [-10.0, 100.0] if on else None,  # BipedalWalker's stay below
    "reward.ratio": lambda k: k / (k + 1),
    "policy.model.normalize_obs": lambda on: on or None,
    "policy.temperature": lambda alpha: _if_flag(alpha, "auto", None),
    "policy.n_critics": lambda twin: 1 + twin,
    "policy.target_noise": lambda sigma: _if_flag(sigma, None, 0.0),
    "policy.anneal": lambda last: last == 0,
}
"""Values here, by guerdon's key; None to leave it out."""

POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn_vanilla": ("dqn", {"policy.double": False}),
    "ppo_vanilla": ("ppo", {}),
    "ppo_offpolicy": ("ppo", {}),
    "discrete_sac": ("sac", {}),
    "sac_discrete": ("sac", {}),
}
"""Policies that are an option of another one here; off-policy PPO becomes PPO."""

ENVS: dict[str, dict[str, Any]] = {
    "acrobot": {"env.id": "Acrobot-v1"},
    "atari": {"reward.clip": [-1.0, 1.0]},
    "bipedalwalker": {"env.id": "BipedalWalker-v3"},
    "bitflip": {
        "env.id": "guerdon/BitFlip-v0",
        "env.wrappers": ["guerdon.compat.nervex.envs:one_for_success"],
    },
    "carracing": {"env.id": "CarRacing-v3"},
    "cartpole": {"env.id": "CartPole-v1", "env.max_episode_steps": 200},  # CartPole-v0
    "cliffwalking": {"env.id": "CliffWalking-v1"},
    "frozen_lake": {"env.id": "FrozenLake-v1"},
    "lunarlander": {"env.id": "LunarLander-v3"},
    "mbmujoco": {},
    "mbpendulum": {"env.id": "Pendulum-v1"},
    "minigrid": {},
    "mountain_car": {"env.id": "MountainCar-v0"},
    "mujoco": {},
    "pendulum": {"env.id": "Pendulum-v1"},
    "taxi": {"env.id": "Taxi-v4"},
}
"""Values for their environments; those without an id have it in ``env.env_id``."""

ENV_KEYS: dict[str, tuple[str, ...]] = {
    "bitflip": ("n_bits",),
    "carracing": ("continuous",),
    "frozen_lake": ("desc", "is_slippery", "map_name"),
    "lunarlander": ("continuous",),
}
"""Keys of ``env`` that are arguments of the environment."""

_MUJOCO = (
    "Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedDoublePendulum|InvertedPendulum|"
    "Pusher|Reacher|Swimmer|Walker2d"
)
ENV_IDS = (
    (r"(\w+)NoFrameskip-v\d", r"ALE/\1-v5"),
    (r"(LunarLander|LunarLanderContinuous|CarRacing)-v[12]", r"\1-v3"),
    (r"Taxi-v3", "Taxi-v4"),
    (rf"({_MUJOCO})-v[234]", r"\1-v5"),
)
"""Ids of other versions of Gym, and their replacements."""

REWARD_MARKS = {"min_snippet_length": "trex", "collect_count": "gail"}
"""Rewards of configs without a type, whose entry function says it, by an option of theirs."""

REWARD_KEYS = {
    "hidden_size_list": "hidden_size",
    "intrinsic_reward_weight": "weight",
    "data_path": "expert_data_path",
    "eps_list": "noise_levels",
}
"""Options of ``reward_model``; others have the same name."""

REWARD_DROPPED = {
    **dict.fromkeys(
        ("obs_shape", "action_shape", "input_size", "action_size", "s_size", "a_size"), SPACES
    ),
    **dict.fromkeys(("continuous", "discrete_action"), SPACES),
    **dict.fromkeys(
        (
            "expert_model_path", "model_path", "offline_data_path", "collect_count", "bc_path",
            "bc_iterations", "checkpoint_min", "checkpoint_max", "checkpoint_step", "num_trajs",
            "num_trajs_per_bin",
        ),
        _DEMONSTRATIONS,
    ),
    **dict.fromkeys(
        ("log_every_n_train", "store_model_every_n_train", "reward_model_path", "exp_name"), _LOG
    ),
    **dict.fromkeys(
        (
            "obs_norm", "obs_norm_clamp_max", "obs_norm_clamp_min", "extrinsic_reward_norm",
            "extrinsic_reward_norm_max", "intrinsic_reward_rescale", "reverse_scale",
        ),
        "running statistics of the whole run normalise",
    ),
    "clear_buffer_per_iters": "this reward keeps no such data",
    "target_new_data_count": "collect.n_step counts new data",
    "intrinsic_reward_type": "",  # see `_translate_reward`
}  # fmt: skip
"""Options of ``reward_model`` that a reward here may lack, and why."""
