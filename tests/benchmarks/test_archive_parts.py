"""`benchmarks/archive.py`: what is under way comes back as it was, or not at all."""

import shutil
import sys
import tarfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import archive


def test_the_smallest_come_back_whole_and_nothing_does_where_a_part_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "PART", 2**16)
    runs, file = tmp_path / "runs", tmp_path / "under-way"
    for name, size in (("large", 2**20), ("middle", 2**17), ("small", 10)):
        (runs / name).mkdir(parents=True)
        (runs / name / "weights").write_bytes(name[:1].encode() * size)
    assert archive.pack(runs, file, 2**19) == ["small", "middle"]
    parts = archive.list_parts(file)
    assert len(parts) > 2 and all(part.stat().st_size <= 2**16 for part in parts)
    shutil.rmtree(runs)
    assert sorted(archive.unpack(runs, file)) == ["middle", "small"] and archive.unpack(runs, file) == []
    assert (runs / "middle" / "weights").read_bytes() == b"m" * 2**17
    shutil.rmtree(runs)
    parts[1].unlink()
    with pytest.raises(tarfile.ReadError):
        archive.unpack(runs, file)
    assert archive.list_folders(runs) == [] and {path.name for path in tmp_path.iterdir()} == {
        "runs",
        *(part.name for part in archive.list_parts(file)),
    }
