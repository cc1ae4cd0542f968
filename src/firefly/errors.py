"""The one error that users see: it names the layer, the value and the way out."""


class FireflyError(Exception):
    """Something in the input that Firefly cannot work with; the message says what, where and what to do."""
