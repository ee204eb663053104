"""RLinf's reward workflow: config keys, checkpoints, scripts, `RewardWorker`."""
