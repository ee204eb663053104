"""DI-engine's reward models: the guide's base class, and guerdon's models with its interface."""

from guerdon.compat.di_engine.reward_model import base_reward_model, models, red_irl_model

BaseRewardModel = base_reward_model.BaseRewardModel
REWARD_MODEL_REGISTRY = models.REWARD_MODEL_REGISTRY
create_reward_model = models.create_reward_model
get_reward_model_cls = models.get_reward_model_cls
GailRewardModel = models.GailRewardModel
ICMRewardModel = models.ICMRewardModel
PdeilRewardModel = models.PdeilRewardModel
PwilRewardModel = models.PwilRewardModel
RedRewardModel = red_irl_model.RedRewardModel
RndRewardModel = models.RndRewardModel
TrexRewardModel = models.TrexRewardModel
