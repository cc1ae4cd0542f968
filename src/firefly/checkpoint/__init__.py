"""Runs on disk: the grown architecture, weights, optimiser and history; JSON and safetensors, nothing pickled."""

from firefly.checkpoint.saving import load, save

__all__ = ["load", "save"]
