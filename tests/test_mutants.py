"""The list of faults stays true: each of them can still be put in, and the tests meant for it are there."""

from collections import Counter

import pytest

import mutants

FAULTS = mutants.read_faults()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.wrong)
def test_every_fault_can_be_put_in_exactly_once(fault: mutants.Fault) -> None:
    path = mutants.find_source(mutants.ROOT, fault)
    assert path.is_file(), f"{fault.file} is gone: tell the fault of the file that does its work now"
    source = path.read_text()
    assert mutants.apply(source, fault) != source
    files = [word for before, word in mutants.pairs(fault.tests) if word.endswith(".py") and before != "-k"]
    assert files and all((mutants.ROOT / "tests" / file).is_file() for file in files), fault.tests


def test_there_are_enough_and_no_two_are_one() -> None:
    assert len(FAULTS) >= 60
    assert not [key for key, count in Counter((one.file, one.line, one.fault) for one in FAULTS).items() if count > 1]
    assert not [key for key, count in Counter(one.wrong for one in FAULTS).items() if count > 1]


def test_a_piece_that_is_gone_or_not_alone_is_refused() -> None:
    fault = mutants.Fault("one.py", "a + b", "a - b", "the sign is wrong", "test_one.py")
    assert mutants.apply("c = a + b\n", fault) == "c = a - b\n"
    for source in ("c = a * b\n", "c = a + b + (a + b)\n"):
        with pytest.raises(ValueError, match=r"stands there [02] times"):
            mutants.apply(source, fault)
