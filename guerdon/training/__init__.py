"""Training loops, evaluation, checkpoints, and the run directory."""
