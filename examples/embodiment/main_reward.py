"""Fit a classifier of success to collected images.

python examples/embodiment/main_reward.py --config-name train_reward_model KEY=VALUE
"""

from guerdon.compat.rlinf.main import main_reward

if __name__ == "__main__":
    main_reward()
