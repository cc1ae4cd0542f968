"""Firefly grows neural networks."""

from firefly.errors import FireflyError

__all__ = ["FireflyError"]
