"""Looking at rewards: reports."""
