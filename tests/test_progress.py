"""One line of progress: renewed in place on a terminal, elsewhere printed now and then, and always at its end."""

import io

import pytest

from firefly import progress
from firefly.progress import Line, format_time


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_a_terminal_shows_one_line_that_lives(clock: Clock) -> None:
    stream = Stream(terminal=True)
    line = Line(stream=stream)
    for number in range(4):
        clock.now += 0.15
        line(f"step {number}")
    line("done", last=True)
    assert stream.getvalue() == "\r\x1b[Kstep 0\r\x1b[Kstep 2\r\x1b[Kdone\n"
    line.close()
    assert stream.getvalue().endswith("done\n")  # nothing stands there any more


def test_a_file_gets_a_line_now_and_then_and_the_last(clock: Clock) -> None:
    stream = Stream(terminal=False)
    line = Line(stream=stream)
    for number in range(25):
        clock.now += 1
        line(f"step {number}")
    line("done", last=True)
    line.close()
    assert stream.getvalue() == "step 9\nstep 19\ndone\n"


def test_what_stands_there_stays_or_goes() -> None:
    for clear, end in ((False, "half\n"), (True, "half\r\x1b[K")):
        stream = Stream(terminal=True)
        line = Line(stream=stream)
        line("half")
        line.close(clear)
        line.close(clear)
        assert stream.getvalue() == "\r\x1b[K" + end


def test_it_can_be_silent() -> None:
    stream = Stream(terminal=True)
    line = Line(False, stream)
    line("half")
    line("done", last=True)
    line.close()
    assert not stream.getvalue()


def test_times_read_well() -> None:
    assert format_time(3.2) == "0:03" and format_time(3723) == "1:02:03"
