#!/bin/bash
# Fit a classifier: bash examples/embodiment/train_reward_model.sh CONFIG [KEY=VALUE ...]
set -eu
export EMBODIED_PATH="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
name="${1:-train_reward_model}"
shift || true
exec python "$EMBODIED_PATH/main_reward.py" \
    --config-path "$EMBODIED_PATH/config/" --config-name "$name" "$@"
