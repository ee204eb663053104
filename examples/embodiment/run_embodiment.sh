#!/bin/bash
# Train a policy: bash examples/embodiment/run_embodiment.sh CONFIG [KEY=VALUE ...]
set -eu
export EMBODIED_PATH="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
name="${1:-maniskill_ppo_cnn}"
shift || true
exec python "$EMBODIED_PATH/train_embodied_agent.py" \
    --config-path "$EMBODIED_PATH/config/" --config-name "$name" "$@"
