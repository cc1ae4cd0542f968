"""Downloads from a server of our own."""

import gzip
import hashlib
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from packing import make_split, make_tar, pack_cifar, pack_idx, save_idx, write

from firefly.errors import FireflyError
from firefly.vision import data, download


class Shelf(BaseHTTPRequestHandler):
    """Serves `server.shelf`; understands ranges unless told not to; can close a connection half-way."""

    def do_GET(self):
        self.server.asked.append(self.headers.get("Range"))
        content = self.server.shelf.get(self.path)
        if content is None:
            return self.send_error(404)
        start = 0
        if self.server.ranges and (asked := self.headers.get("Range")):
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        length = str(len(content) - start) if self.server.length is None else self.server.length
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(content[start : self.server.stop_at])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), Shelf) as shelf:
        shelf.shelf, shelf.asked, shelf.ranges, shelf.stop_at, shelf.length = {}, [], True, None, None
        thread = threading.Thread(target=shelf.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield shelf
        shelf.shutdown()
        thread.join()


def offer(server, monkeypatch, archive, name="cifar100", md5=None, hosts=None):
    """Put an archive on the server, and the server in the place of the official address."""
    host = f"http://127.0.0.1:{server.server_address[1]}/sets/"
    server.shelf["/sets/made-up.tar.gz"] = archive
    remote = download.Remote("made-up.tar.gz", md5 or hashlib.md5(archive).hexdigest(), hosts or (host,))
    monkeypatch.setitem(download.ADDRESSES, name, [remote])
    return host


@pytest.fixture
def cifar100():
    images, labels = make_split(3, (3, 32, 32), classes=20)
    raw = pack_cifar(images, labels, labels)
    folder = tarfile.TarInfo("cifar-100-binary")
    folder.type, folder.mode = tarfile.DIRTYPE, 0o755
    return make_tar(folder, **{"cifar-100-binary/train.bin": raw, "cifar-100-binary/test.bin": raw[:3074]})


def test_fetch_downloads_checks_and_unpacks(tmp_path, server, monkeypatch, capsys, cifar100):
    offer(server, monkeypatch, cifar100)
    assert download.fetch("CIFAR-100", tmp_path / "new") == tmp_path / "new"
    assert len(data.load("cifar100", tmp_path / "new")) == 3
    assert len(data.load("cifar100", tmp_path / "new", "test")) == 1
    assert sorted(file.name for file in tmp_path.rglob("*") if file.is_file()) == ["test.bin", "train.bin"]
    assert "made-up.tar.gz" in capsys.readouterr().err
    download.fetch("cifar100", tmp_path / "new", progress=False)
    assert server.asked == [None] and capsys.readouterr() == ("", "")  # nothing is fetched twice


@pytest.mark.parametrize("ranges", [True, False])
def test_fetch_goes_on_after_an_interruption(tmp_path, server, monkeypatch, cifar100, ranges):
    offer(server, monkeypatch, cifar100)
    server.stop_at, server.ranges = 1000, ranges
    with pytest.raises(FireflyError, match=r"closed after 1,000 of [\d,]+ bytes"):
        download.fetch("cifar100", tmp_path, progress=False)
    assert (tmp_path / "made-up.tar.gz.part").read_bytes() == cifar100[:1000]
    server.stop_at = None
    download.fetch("cifar100", tmp_path, progress=False)
    assert server.asked == [None, "bytes=1000-"]
    assert len(data.load("cifar100", tmp_path)) == 3


def test_a_whole_part_file_is_checked_and_used(tmp_path, server, monkeypatch, cifar100):
    offer(server, monkeypatch, cifar100)
    write(tmp_path / "made-up.tar.gz.part", cifar100)
    download.fetch("cifar100", tmp_path, progress=False)
    assert len(data.load("cifar100", tmp_path)) == 3


def test_a_wrong_checksum_is_refused_and_leaves_nothing(tmp_path, server, monkeypatch, cifar100):
    offer(server, monkeypatch, cifar100, md5="0" * 32)
    found = hashlib.md5(cifar100).hexdigest()
    with pytest.raises(FireflyError, match=f"made-up.tar.gz: wrong checksum: MD5 {found}, published {'0' * 32}"):
        download.fetch("cifar100", tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_without_a_connection_the_error_says_what_to_do(tmp_path, server, monkeypatch, cifar100):
    closed = "http://127.0.0.1:9/"  # the discard port: nothing listens
    offer(server, monkeypatch, cifar100, hosts=(closed,))
    with pytest.raises(FireflyError, match=r"could not fetch made-up[\s\S]*127.0.0.1:9/[\s\S]*by hand") as error:
        download.fetch("cifar100", tmp_path, progress=False)
    assert str(tmp_path / "made-up.tar.gz") in str(error.value)


def test_the_next_address_serves_when_one_fails(tmp_path, server, monkeypatch, cifar100):
    host = offer(server, monkeypatch, cifar100)
    offer(server, monkeypatch, cifar100, hosts=("http://127.0.0.1:9/", host + "elsewhere/", host))
    download.fetch("cifar100", tmp_path, progress=False)
    assert len(data.load("cifar100", tmp_path)) == 3


def test_fetch_gets_only_the_files_that_are_missing(tmp_path, server, monkeypatch):
    host = f"http://127.0.0.1:{server.server_address[1]}/"
    remotes = []
    for file in data.SETS["mnist"].train + data.SETS["mnist"].test:
        images, labels = make_split(2, (28, 28))
        raw = gzip.compress(pack_idx(images if "images" in file else labels))
        server.shelf["/" + file.split("/")[-1] + ".gz"] = raw
        remotes.append(download.Remote(file + ".gz", hashlib.md5(raw).hexdigest(), (host,)))
    monkeypatch.setitem(download.ADDRESSES, "mnist", remotes)
    save_idx(tmp_path, pack_idx(images), pack_idx(labels))  # the training files, not gzipped
    download.fetch("mnist", tmp_path, progress=False)
    assert len(server.asked) == 2 and len(data.load("mnist", tmp_path, "test")) == 2


def test_every_data_set_has_addresses_for_all_its_files():
    assert list(download.ADDRESSES) == list(data.SETS)
    for name, remotes in download.ADDRESSES.items():
        wanted = set(data.SETS[name].train + data.SETS[name].test)
        given_files = {remote.path.removesuffix(".gz") for remote in remotes}
        assert wanted == given_files or remotes[0].path.endswith(".tar.gz")
        for remote in remotes:
            assert len(bytes.fromhex(remote.md5)) == 16
            assert all(host.startswith("http") and host.endswith("/") for host in remote.hosts)


def test_an_archive_put_there_by_hand_is_unpacked_and_kept(tmp_path, server, monkeypatch, cifar100):
    offer(server, monkeypatch, cifar100)
    write(tmp_path / "made-up.tar.gz", cifar100)
    download.fetch("cifar100", tmp_path, progress=False)
    assert server.asked == [] and len(data.load("cifar100", tmp_path)) == 3
    assert (tmp_path / "made-up.tar.gz").read_bytes() == cifar100


def test_an_archive_put_there_by_hand_must_be_the_published_one(tmp_path, server, monkeypatch, cifar100):
    offer(server, monkeypatch, cifar100)
    write(tmp_path / "made-up.tar.gz", cifar100[:-1])
    with pytest.raises(FireflyError, match=r"made-up\.tar\.gz has the MD5 .* Delete it and run the command again"):
        download.fetch("cifar100", tmp_path, progress=False)
    assert server.asked == [] and [path.name for path in tmp_path.rglob("*")] == ["made-up.tar.gz"]


@pytest.mark.parametrize("length", ["abc", "", "-5", "1e3", "²"])
def test_a_length_that_is_none_leaves_it_to_the_checksum(tmp_path, server, monkeypatch, cifar100, length):
    offer(server, monkeypatch, cifar100)
    server.length = length
    download.fetch("cifar100", tmp_path, progress=True)
    assert len(data.load("cifar100", tmp_path)) == 3


def test_a_server_that_never_ends_is_cut_off(tmp_path, server, monkeypatch, cifar100):
    offer(server, monkeypatch, cifar100)
    monkeypatch.setattr(download, "LARGEST", 1000)
    with pytest.raises(FireflyError, match=r"made-up.tar.gz[\s\S]*more than 1,000 bytes"):
        download.fetch("cifar100", tmp_path, progress=False)


def test_a_folder_that_cannot_be_is_named(tmp_path):
    write(tmp_path / "file", b"")
    with pytest.raises(FireflyError, match=r"cannot make the folder .*file"):
        download.fetch("mnist", tmp_path / "file" / "data", progress=False)
