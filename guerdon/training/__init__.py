"""The loops, evaluation, checkpoints, and what a run leaves behind."""
