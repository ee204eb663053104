"""Classic control."""
