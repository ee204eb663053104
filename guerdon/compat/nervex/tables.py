"""Keys and names of nerveX and DI-engine, and what they are in guerdon; see `translate`.

Keys are patterns, separated by spaces. Those of the section ``policy`` are written without it, and
without ``algo``: ``learn.nstep`` is ``policy.learn.nstep`` and ``policy.learn.algo.nstep``. A key
without a part is found in any of `PARTS`, too: ``nstep`` is also ``policy.nstep`` and
``policy.collect.algo.nstep``.
"""

from collections.abc import Callable
from typing import Any

PARTS = ("learn", "collect", "eval", "command", "other")
PACKAGES = ("nervex", "app_zoo", "ding", "dizoo")

KEYS = {
    "env.backend": "env.env_manager_type env_manager.type",
    "env.n_envs": "env.actor_env_num env.collector_env_num",
    "env.max_episode_steps": "env.max_step",
    "eval.n_envs": "env.evaluator_env_num",
    "eval.episodes": "env.n_evaluator_episode evaluator.n_episode",
    "eval.target_return": "env.stop_value evaluator.stop_val evaluator.stop_value",
    "eval.every": "evaluator.eval_freq",
    "run.name": "exp_name",
    "run.device": "use_cuda cuda",
    "run.log_every": "learner.hook.log_show.ext_args.freq learner.hook.log_show_after_iter",
    "collect.n_step": "actor.n_sample collect.n_sample",
    "collect.n_episode": "actor.n_episode collect.n_episode",
    "collect.warmup_steps": "learn.init_data_count random_collect_size",
    "collect.buffer_size": "replay_buffer.meta_maxlen replay_buffer.*.meta_maxlen"
    " replay_buffer.replay_buffer_size",
    "learn.batch_size": "learn.batch_size",
    "learn.repeat": "learn.epoch_per_collect",
    "learn.updates_per_collect": "learn.train_step learn.update_per_collect",
    "reward.normalize": "env.norm_reward.use_norm learn.value_norm",
    "reward.clip": "env.rew_clip",
    "reward.strategy": "collect.her_strategy her.her_strategy",
    "reward.ratio": "collect.her_replay_k her.her_replay_k",
    "policy.init_from": "learner.load_path learner.hook.load_ckpt_before_run"
    " learn.pretrained_model_path",
    "policy.gamma": "discount_factor",
    "policy.gae_lambda": "gae_lambda",
    "policy.n_step": "nstep",
    "policy.prioritized": "use_priority priority",
    "policy.alpha": "replay_buffer.alpha replay_buffer.*.alpha",
    "policy.beta": "replay_buffer.beta replay_buffer.*.beta",
    "policy.epsilon.*": "command.eps.* other.eps.*",
    "policy.learning_rate": "learn.learning_rate learn.learning_rate_q learn.learning_rate_critic"
    " learn.learning_rate_actor learn.learning_rate_policy learn.learning_rate_value"
    " learn.learning_rate_alpha",
    "policy.anneal": "learn.lr_scheduler.min_lr_lambda",
    "policy.max_grad_norm": "learn.grad_clip_value learn.grad_norm",
    "policy.target_update_every": "learn.target_update_freq",
    "policy.tau": "learn.target_theta",
    "policy.value_coefficient": "learn.value_weight",
    "policy.entropy_coefficient": "learn.entropy_weight",
    "policy.clip_range": "learn.clip_ratio",
    "policy.normalize_advantage": "learn.use_adv_norm learn.adv_norm",
    "policy.exploration_noise": "collect.noise_sigma",
    "policy.target_noise": "learn.use_noise learn.noise learn.noise_sigma",
    "policy.target_noise_clip": "learn.noise_range.max",
    "policy.actor_every": "learn.actor_update_freq",
    "policy.n_critics": "model.use_twin_critic model.twin_critic model.use_twin_q"
    " learn.use_twin_critic learn.use_twin_q",
    "policy.temperature": "learn.is_auto_alpha learn.auto_alpha learn.alpha",
    "policy.target_entropy": "learn.target_entropy",
    "policy.model.hidden": "model.hidden_dim_list model.encoder_hidden_size_list"
    " model.embedding_dim model.actor_head_hidden_size model.critic_head_hidden_size",
    "policy.model.dueling": "model.head_kwargs.dueling",
    "policy.model.share_encoder": "model.share_encoder",
    "policy.model.normalize_obs": "env.norm_obs.use_norm",
}
"""Their keys, by guerdon's; of several in one row, the first that a config has counts."""

IN_UPDATES = (
    "evaluator.eval_freq", "command.eps.decay", "learner.hook.log_show.ext_args.freq",
    "learner.hook.log_show_after_iter",
)  # fmt: skip
"""Keys that count updates; guerdon's count environment steps."""

SPACES = "spaces and networks follow the environment"
IMAGES = "the encoder of images has fixed sizes"
UNKNOWN = "not known to guerdon"
_LOG = "guerdon writes its own log, checkpoints and videos"
_DEMONSTRATIONS = "expert_data_path has the demonstrations"

DROPPED = {
    "": "learner.hook.log_show.*",  # its ``freq`` is above
    "the class of the policy defines it": "on_policy",
    SPACES: "model.obs_* model.action_* model.*_obs_shape model.contin* model.encoder_kwargs.*"
    " model.model_type model.import_names action_space continuous",
    "networks have no such part": "model.* noisy_net",
    "transitions are stored one by one, and read with what follows them": "traj_len actor.traj_len"
    " unroll_len burnin_step collect.collector.get_train_sample collector.type replay_buffer.type"
    " replay_buffer.import_names",
    "terminations and time limits are told apart": "learn.ignore_done",
    _LOG: "actor.*print_freq collect.collector.* collect.save_path collect.data_type learner.hook.*"
    " eval.evaluator.render.* env.replay_path env.save_replay_gif env.exp_name",
    "environment processes need no options for it": "env.manager.* env.*_batch_size",
    "env.wrappers names wrappers": "env.env_wrapper",
    "reward.clip clips the rewards of training alone": "env.is_train",
    "env.n_envs and eval.n_envs count environments": "env_num collector_env_num",
    "the replay buffer has no such option": "*replay_buffer.*",
    "prioritized replay always has importance weights": "priority_IS_weight",
    "Adam has no weight decay": "learn.weight_deca*",
    "the betas of Adam are PyTorch's": "learn.betas",
    "policy.anneal lasts as long as the run": "learn.lr_scheduler.*",
    "gradients are clipped by their norm": "learn.grad_clip_type",
    "target noise is clipped on both sides alike": "learn.noise_range.min",
    "the loss has no such term": "learn.reparameterization learn.policy_*_reg_weight learn.kl_*"
    " learn.value_network learn.nstep_return collect.collector_logit",
    "advantages are always computed when data is read": "recompute_adv",
    "her_strategy chooses the reward her": "collect.use_her",
    "learn.batch_size counts transitions of all episodes": "other.her.*",
    "actions are scaled to the bounds of their space, or clipped to them": "env.*act_scale",
    "policy.gamma is used": "env.norm_reward.reward_discount",
    "only runs of guerdon can be started from, with policy.init_from=RUN": "load_path model_path"
    " state_dict_path learn.resume_training",
    "several GPUs are not there yet: one is used": "multi_gpu use_distributed",
    "several agents and leagues are not there yet": "multi_agent *agent_num *league*",
    _DEMONSTRATIONS: "expert_random_collect_size",
}
"""Keys without a counterpart, by the reason; not reported if that is empty."""

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

REWARD_DEFAULTS: dict[str, dict[str, Any]] = {
    "red": {
        "expert_data_path": "expert_data.pkl",
        "sample_size": 1000,
        "sigma": 5,
        "batch_size": 64,
        "hidden_size": 128,
        "update_per_collect": 100,
        "clear_buffer_per_iters": 1,
    }
}
"""Documented default values of ``reward_model``, by type; others have guerdon's."""

REWARD_DROPPED = {
    "": "intrinsic_reward_type",  # see `_translate_reward`
    SPACES: "obs_shape action_shape input_size action_size s_size a_size continuous"
    " discrete_action",
    _DEMONSTRATIONS: "expert_model_path model_path offline_data_path collect_count bc_path"
    " bc_iterations checkpoint_min checkpoint_max checkpoint_step num_trajs num_trajs_per_bin",
    _LOG: "log_every_n_train store_model_every_n_train reward_model_path exp_name",
    "running statistics of the whole run normalise": "obs_norm obs_norm_clamp_max"
    " obs_norm_clamp_min extrinsic_reward_norm extrinsic_reward_norm_max intrinsic_reward_rescale"
    " reverse_scale",
    "this reward keeps no such data": "clear_buffer_per_iters",
    "collect.n_step counts new data": "target_new_data_count",
}
"""Options of ``reward_model`` that a reward here may lack, by the reason."""
