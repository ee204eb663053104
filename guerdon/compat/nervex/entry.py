"""nerveX's entry functions."""

from functools import partial

from guerdon.compat.di_engine import entry
from guerdon.compat.nervex.worker.learner import SerialLearner

parallel_pipeline = entry.parallel_pipeline
serial_pipeline = partial(entry.serial_pipeline, learner=SerialLearner)
"""`guerdon.serial_pipeline`, with the files of a serial run in the current folder."""
