"""What is under way, as files that travel where each of them, and all together, may only be so large: a tar in parts.

python benchmarks/archive.py pack RUNS FILE [MIB]     its folders into FILE.00, FILE.01, ...: the smallest first
python benchmarks/archive.py unpack RUNS FILE         back, if there are none
"""

import sys
import tarfile
import tempfile
from pathlib import Path

PART = 15 * 2**20  # bytes


def pack(folder: Path, file: Path, most: int = 4 * PART) -> list[str]:
    """The folders inside `folder`, as many as fit, the smallest first, in `file`.00, `file`.01, ...; their names."""
    sizes = {one: sum(path.stat().st_size for path in one.rglob("*") if path.is_file()) for one in list_folders(folder)}
    whole, kept, room = file.with_name(f"{file.name}.part"), list[str](), most
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(whole, "w") as archive:
        for one, size in sorted(sizes.items(), key=lambda pair: pair[1]):
            if 1.02 * size + 2**16 <= room:  # and the names of its files
                archive.add(one, one.name)
                kept.append(one.name)
                room = most - archive.offset
    for old in list_parts(file):
        old.unlink()
    with whole.open("rb") as source:
        for number, part in enumerate(iter(lambda: source.read(PART), b"")):
            file.with_name(f"{file.name}.{number:02d}").write_bytes(part)
    whole.unlink()
    return kept


def unpack(folder: Path, file: Path) -> list[str]:
    """Put back what was packed, if nothing is there; the names of the folders."""
    parts = list_parts(file)
    if not parts or list_folders(folder):
        return []
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:  # half a training is worse than none
        whole, fresh = Path(beside) / "whole", Path(beside) / "fresh"
        with whole.open("wb") as target:
            for part in parts:
                target.write(part.read_bytes())
        with tarfile.open(whole) as archive:
            archive.extractall(fresh, filter="data")
        return [one.rename(folder / one.name).name for one in list_folders(fresh)]


def list_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def list_parts(file: Path) -> list[Path]:
    return sorted(file.parent.glob(f"{file.name}.[0-9][0-9]"))


if __name__ == "__main__":
    words, (runs, file), most = sys.argv[1], map(Path, sys.argv[2:4]), [int(mib) * 2**20 for mib in sys.argv[4:]]
    names = unpack(runs, file) if words == "unpack" else pack(runs, file, *most)
    print(f"{words}ed: {', '.join(names) or 'nothing'}", flush=True)
