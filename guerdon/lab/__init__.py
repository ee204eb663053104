"""Learning curves, probes of rewards, reports, export."""
