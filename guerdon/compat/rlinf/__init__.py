"""RLinf's config keys of the reward workflow."""
