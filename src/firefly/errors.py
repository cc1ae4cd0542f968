"""The one error that users see: it names the layer, the value and the way out."""


class FireflyError(Exception):
    """Something in the input that Firefly cannot work with; the message says what, where and what to do."""


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
