"""RLlib: `PPOConfig` and `train`, with its environments and its learner in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from learners.base import Learner, PPOSetting, Watch

if TYPE_CHECKING:
    import numpy as np


class _RLlib(Learner):
    name = "RLlib"
    packages = ("ray",)
    usage: ClassVar = {
        "ppo": "its current API; `num_env_runners=0` and `num_learners=0`, so that nothing is sent "
        "between processes; the time of an iteration is not rounded up",
    }

    def ppo(self, setting: PPOSetting, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        config = (
            PPOConfig()
            .environment("CartPole-v1")
            .env_runners(
                num_env_runners=0,
                num_envs_per_env_runner=setting.n_envs,
                rollout_fragment_length=setting.n_steps,
            )
            .learners(num_learners=0)
            .training(
                lr=setting.learning_rate,
                gamma=setting.gamma,
                lambda_=setting.gae_lambda,
                clip_param=setting.clip,
                vf_loss_coeff=setting.value_weight,
                entropy_coeff=setting.entropy_weight,
                grad_clip=setting.max_grad_norm,
                grad_clip_by="global_norm",
                use_kl_loss=False,
                train_batch_size_per_learner=setting.rows,
                minibatch_size=setting.batch_size,
                num_epochs=setting.epochs,
            )
            .rl_module(
                model_config=DefaultModelConfig(
                    fcnet_hiddens=[*setting.hidden],
                    fcnet_activation="tanh",
                    vf_share_layers=False,
                )
            )
            .reporting(min_time_s_per_iteration=0)
            .debugging(seed=seed, log_level="ERROR")
        )
        algorithm: Any = config.build_algo()
        module, steps = algorithm.get_module(), 0

        def act(obs: np.ndarray) -> np.ndarray:
            with torch.no_grad():
                logits = module.forward_inference({"obs": torch.as_tensor(obs)})
            return logits["action_dist_inputs"].argmax(-1).numpy()

        while not watch(steps, act):
            found = algorithm.train()
            steps = int(found["env_runners"]["num_env_steps_sampled_lifetime"])
        algorithm.stop()
        ray.shutdown()


LEARNER = _RLlib()
