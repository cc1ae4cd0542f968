"""Runs on disk: the grown architecture, weights, optimiser and history; JSON and safetensors, nothing pickled."""

from firefly.checkpoint.architecture import architecture, rebuild
from firefly.checkpoint.carrying import carry_architecture
from firefly.checkpoint.saving import load, save

__all__ = ["architecture", "carry_architecture", "load", "rebuild", "save"]
