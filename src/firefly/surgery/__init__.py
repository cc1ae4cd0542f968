"""Putting tensors, layers and statistics into a model, for a while or for good."""
