"""Looking at runs and rewards: learning curves, probes, reports."""
