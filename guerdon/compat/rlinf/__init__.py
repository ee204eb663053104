"""RLinf's keys of the reward workflow."""
