"""Archives: what is wanted of them is unpacked whole, whatever else is in them is not."""

import gzip
import io
import tarfile
import tracemalloc

import pytest
from packing import make_tar, write

from firefly.errors import FireflyError
from firefly.vision.archive import unpack

TRAIN, TEST = "cifar-100-binary/train.bin", "cifar-100-binary/test.bin"
WHOLE = {TRAIN: b"a" * 3074, TEST: b"b" * 3074}


def make_member(name, kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def refuse(tmp_path, content, match, images=2):
    """Unpacking must fail in these words and leave nothing but the archive."""
    root = tmp_path / "root"
    archive = write(root / "made-up.tar.gz", content)
    with pytest.raises(FireflyError, match=match) as error:
        unpack(archive, root, (TRAIN, TEST), images)
    assert str(archive) in str(error.value) and "\n" not in str(error.value)
    assert [path.name for path in tmp_path.rglob("*")] == ["root", "made-up.tar.gz"]


def test_only_what_is_wanted_is_unpacked(tmp_path):
    folder, here = make_member("cifar-100-binary", tarfile.DIRTYPE), make_member(".", tarfile.DIRTYPE)
    members = {f"./{TRAIN}": WHOLE[TRAIN], "cifar-100-binary/read-me.txt": b"hello", **WHOLE, "elsewhere.bin": b"x"}
    archive = write(tmp_path / "made-up.tar.gz", make_tar(folder, here, **members))
    unpack(archive, tmp_path, (TRAIN, TEST), 2)
    found = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*.bin")}
    assert found == WHOLE and sorted(path.name for path in tmp_path.iterdir()) == ["cifar-100-binary", archive.name]


@pytest.mark.parametrize(
    "member",
    [
        make_member("../outside.txt"),
        make_member("cifar-100-binary/../../outside.txt"),
        make_member("/tmp/firefly-outside.txt"),
        make_member(""),
        make_member("."),
        make_member("./"),
        make_member("cifar-100-binary/.."),
        make_member("..", tarfile.DIRTYPE),
        make_member("back\\slash"),
        make_member("link", tarfile.SYMTYPE, "/etc/passwd"),
        make_member("link", tarfile.LNKTYPE, TRAIN),
        make_member("device", tarfile.CHRTYPE),
        make_member("pipe", tarfile.FIFOTYPE),
        make_member("holes", tarfile.GNUTYPE_SPARSE),
    ],
    ids=lambda member: f"{member.name}-{member.type.decode()}",
)
def test_archives_that_reach_outside_are_not_unpacked(tmp_path, member):
    refuse(tmp_path, make_tar(member, **WHOLE), "no plain file below its folder: nothing unpacked")


def test_a_zero_byte_in_a_name_is_refused(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        info = make_member("short")
        info.pax_headers = {"path": "a\0b"}
        tar.addfile(info)
    refuse(tmp_path, buffer.getvalue(), "no plain file")


def test_incomplete_archives_are_not_unpacked(tmp_path):
    refuse(tmp_path, make_tar(**{TRAIN: WHOLE[TRAIN]}), f"does not hold {TEST}")


@pytest.mark.parametrize("keep", [0.0, 0.02, 0.5, 0.9])
@pytest.mark.parametrize("packed", [True, False])
def test_cut_off_archives_are_refused(tmp_path, keep, packed):
    whole = make_tar(**WHOLE)
    raw = whole if packed else gzip.decompress(whole)
    part = raw[: int(keep * (len(raw) if packed else 2 * 3584))]
    refuse(tmp_path, part if packed else gzip.compress(part), "made-up")


def test_a_changed_deflate_stream_is_refused(tmp_path):
    raw = bytearray(make_tar(**WHOLE))
    raw[10:40] = b"\xff" * 30
    refuse(tmp_path, bytes(raw), "cannot be unpacked")


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_small_archive_that_stands_for_much_is_not_unpacked(tmp_path, kind):
    """A file of a gigabyte, or a header or a name of one, in a megabyte."""
    info = make_member("large", kind)
    info.size = 10**9
    content = gzip.compress(info.tobuf()) + 50 * gzip.compress(bytes(20_000_000))
    tracemalloc.start()
    refuse(tmp_path, content, "1,000,000,000 bytes" if kind == tarfile.REGTYPE else "more than 1,054,724 bytes")
    assert tracemalloc.get_traced_memory()[1] < 8_000_000
    tracemalloc.stop()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("size", [10**9, 2**62, -1])
def test_a_size_that_no_data_set_has_is_refused_at_once(tmp_path, size):
    info = make_member(TRAIN)
    info.size = size
    refuse(tmp_path, gzip.compress(info.tobuf(tarfile.GNU_FORMAT)), f"is said to have {size:,} bytes")


def test_headers_that_announce_headers_without_end_are_refused(tmp_path):
    name = make_member("x", tarfile.GNUTYPE_LONGNAME)
    name.size = 2
    refuse(tmp_path, gzip.compress(2000 * (name.tobuf() + b"y".ljust(512, b"\0"))), "cannot be unpacked", images=2000)


def test_a_place_that_is_taken_is_named(tmp_path):
    archive = write(tmp_path / "made-up.tar.gz", make_tar(**WHOLE))
    write(tmp_path / "cifar-100-binary", b"a file where the folder belongs")
    with pytest.raises(FireflyError, match=r"made-up\.tar\.gz cannot be unpacked into .*cifar-100-binary"):
        unpack(archive, tmp_path, (TRAIN, TEST), 2)
