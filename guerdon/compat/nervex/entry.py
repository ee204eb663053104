"""nerveX's entry function."""

from guerdon.compat.di_engine.entry import serial_pipeline

__all__ = ["serial_pipeline"]
