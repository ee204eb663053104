"""Configs in nerveX's layout."""

from easydict import EasyDict

cartpole_dqn_default_config = EasyDict(
    env={
        "env_manager_type": "base",
        "import_names": ["app_zoo.classic_control.cartpole.envs.cartpole_env"],
        "env_type": "cartpole",
        "actor_env_num": 8,
        "evaluator_env_num": 5,
    },
    policy={
        "use_cuda": False,
        "policy_type": "dqn",
        "import_names": ["nervex.policy.dqn"],
        "on_policy": False,
        "model": {"obs_dim": 4, "action_dim": 2, "hidden_dim_list": [128, 128], "dueling": True},
        "learn": {
            "train_step": 8,
            "batch_size": 64,
            "learning_rate": 1e-3,
            "algo": {"target_update_freq": 100, "discount_factor": 0.97, "nstep": 1},
        },
        "collect": {"traj_len": 1, "unroll_len": 1, "algo": {"nstep": 1}},
        "command": {"eps": {"type": "exp", "start": 0.95, "end": 0.05, "decay": 4_000}},
    },
    replay_buffer={"buffer_name": ["agent"], "agent": {"meta_maxlen": 50_000}},
    actor={"n_sample": 16},
    evaluator={"n_episode": 5, "eval_freq": 500, "stop_val": 195},
    learner={"hook": {}},
    commander={},
)
"""DQN on CartPole."""
