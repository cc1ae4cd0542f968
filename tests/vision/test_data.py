"""The data sets: small made-up files, holding out, augmentation, downloads from a local server, the digits."""

import gzip
import hashlib
import io
import struct
import tarfile
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firefly.errors import FireflyError
from firefly.vision import data, digits, download


def make_split(count, shape, classes=10, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, *shape), dtype=np.uint8), rng.integers(0, classes, count, dtype=np.uint8)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def pack_cifar(images, *labels):
    return np.concatenate([*(label[:, None] for label in labels), images.reshape(len(images), -1)], axis=1).tobytes()


def pack_idx(values):
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def pack_element(kind, content, order="<", short=False):
    if short and 0 < len(content) <= 4:  # both halves of one word: in big-endian the size comes first
        return struct.pack(order + "I", len(content) << 16 | kind) + content.ljust(4, b"\0")
    return struct.pack(order + "II", kind, len(content)) + content + b"\0" * (-len(content) % 8)


def pack_matrix(name, values, kind, matlab_class, order="<"):
    return pack_element(
        14,
        pack_element(6, struct.pack(order + "II", matlab_class, 0), order)
        + pack_element(5, struct.pack(f"{order}{values.ndim}i", *values.shape), order)
        + pack_element(1, name.encode(), order, short=True)
        + pack_element(kind, values.tobytes(order="F"), order, short=True),
        order,
    )


def pack_mat(images, labels, order="<", compressed=True, label_type="u1"):
    """A MATLAB 5 file as SVHN's: a text first, X (H, W, C, N) of bytes, y (N, 1) of doubles, stored as `label_type`."""
    kind = {"u1": 2, "f8": 9}[label_type]
    elements = [
        pack_matrix("note", np.array([[65, 66]], order + "u2"), kind=4, matlab_class=4, order=order),
        pack_matrix("X", images.transpose(2, 3, 1, 0), kind=2, matlab_class=9, order=order),
        pack_matrix("y", labels[:, None].astype(order + label_type), kind=kind, matlab_class=6, order=order),
    ]
    if compressed:
        deflated = [zlib.compress(element) for element in elements]
        elements = [struct.pack(order + "II", 15, len(content)) + content for content in deflated]
    version = struct.pack(order + "H", 0x0100) + (b"IM" if order == "<" else b"MI")
    return b"MATLAB 5.0 MAT-file".ljust(124) + version + b"".join(elements)


def assert_same(loaded, images, labels, name):
    assert (loaded.name, loaded.images.dtype, loaded.labels.dtype) == (name, torch.uint8, torch.int64)
    assert loaded.images.is_contiguous()
    assert np.array_equal(loaded.images.numpy(), images) and np.array_equal(loaded.labels.numpy(), labels)
    assert len(loaded) == len(images) and loaded.mean.shape == loaded.std.shape == (images.shape[1],)


# ---- readers


def test_reads_cifar10_from_all_its_batches(tmp_path):
    images, labels = make_split(10, (3, 32, 32))
    for number in range(5):
        part = slice(2 * number, 2 * number + 2)
        write(tmp_path / f"cifar-10-batches-bin/data_batch_{number + 1}.bin", pack_cifar(images[part], labels[part]))
    write(tmp_path / "cifar-10-batches-bin/test_batch.bin", pack_cifar(images[:3], labels[:3]))
    assert_same(data.load("cifar10", tmp_path), images, labels, "cifar10")
    assert_same(data.load("CIFAR-10", str(tmp_path), "test"), images[:3], labels[:3], "cifar10")


def test_reads_the_fine_labels_of_cifar100(tmp_path):
    images, fine = make_split(4, (3, 32, 32), classes=100)
    write(tmp_path / "cifar-100-binary/train.bin", pack_cifar(images, fine // 5, fine))
    loaded = data.load("cifar100", tmp_path)
    assert_same(loaded, images, fine, "cifar100")
    assert loaded.classes == 100


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
@pytest.mark.parametrize("zipped", [False, True])
def test_reads_idx_files_plain_or_gzipped(tmp_path, name, folder, zipped):
    images, labels = make_split(5, (28, 28))
    for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
        raw = pack_idx(values)
        file = tmp_path / folder / "raw" / f"t10k-{kind}-ubyte"
        write(file.with_name(file.name + ".gz") if zipped else file, gzip.compress(raw) if zipped else raw)
    assert_same(data.load(name.replace("-", ""), tmp_path, "test"), images[:, None], labels, name)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("label_type", ["u1", "f8"])
@pytest.mark.parametrize("count", [3, 12])  # three labels of a byte fit into a tag
def test_reads_svhn_from_matlab_files(tmp_path, order, compressed, label_type, count):
    images, labels = make_split(count, (3, 32, 32))
    labels[0] = 0
    stored = np.where(labels == 0, 10, labels)
    write(tmp_path / "train_32x32.mat", pack_mat(images, stored, order, compressed, label_type))
    assert_same(data.load("svhn", tmp_path), images, labels, "svhn")


def test_the_environment_says_where_the_data_are(tmp_path, monkeypatch):
    images, labels = make_split(2, (3, 32, 32))
    write(tmp_path / "there/cifar-100-binary/test.bin", pack_cifar(images, labels, labels))
    monkeypatch.setenv("FIREFLY_DATA", str(tmp_path / "there"))
    assert len(data.load("cifar100", split="test")) == 2
    monkeypatch.delenv("FIREFLY_DATA")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").rename(tmp_path / "data")
    assert len(data.load("cifar100", split="test")) == 2


# ---- errors


def test_a_missing_file_is_named_with_the_way_to_get_it(tmp_path):
    write(tmp_path / "MNIST/raw/train-images-idx3-ubyte", pack_idx(make_split(2, (28, 28))[0]))
    with pytest.raises(FireflyError) as error:
        data.load("mnist", tmp_path)
    assert "MNIST/raw/train-labels-idx1-ubyte" in str(error.value) and str(tmp_path) in str(error.value)
    assert f"firefly data get mnist --data {tmp_path}" in str(error.value)


def test_unknown_names_and_splits_are_refused(tmp_path):
    with pytest.raises(FireflyError, match=r"imagenet.*cifar10, cifar100, mnist, fashion-mnist, svhn"):
        data.load("imagenet", tmp_path)
    with pytest.raises(FireflyError, match=r"validation.*'train' or 'test'"):
        data.load("mnist", tmp_path, "validation")


def save_idx(root, images, labels):
    write(root / "MNIST/raw/train-images-idx3-ubyte", images)
    write(root / "MNIST/raw/train-labels-idx1-ubyte", labels)


@pytest.mark.parametrize(
    ("change_images", "change_labels", "damaged"),
    [
        (lambda raw: raw[:-1], bytes, "images-idx3"),  # cut off
        (lambda raw: raw[:9], bytes, "images-idx3"),  # inside the sizes
        (lambda raw: b"", bytes, "images-idx3"),
        (lambda raw: raw + b"x", bytes, "images-idx3"),
        (lambda raw: b"<!do" + raw[4:], bytes, "images-idx3"),  # a page instead of the file
        (bytes, lambda raw: raw[:7] + b"\x01" + raw[8:-1], "labels-idx1"),  # fewer labels than images
        (bytes, lambda raw: raw[:-1] + b"\x0a", "labels-idx1"),  # label 10 of 10 classes
    ],
)
def test_damaged_idx_files_are_refused(tmp_path, change_images, change_labels, damaged):
    images, labels = make_split(2, (28, 28))
    save_idx(tmp_path, pack_idx(images), pack_idx(labels))
    assert len(data.load("mnist", tmp_path)) == 2
    save_idx(tmp_path, change_images(pack_idx(images)), change_labels(pack_idx(labels)))
    with pytest.raises(FireflyError, match=rf"train-{damaged}-ubyte cannot be read .*firefly data get"):
        data.load("mnist", tmp_path)


@pytest.mark.parametrize("cut", [0, 5, 100, -1])
def test_cut_off_gzip_files_are_refused(tmp_path, cut):
    images, labels = make_split(2, (28, 28))
    write(tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz", gzip.compress(pack_idx(images))[:cut])
    write(tmp_path / "MNIST/raw/train-labels-idx1-ubyte.gz", gzip.compress(pack_idx(labels)))
    with pytest.raises(FireflyError, match=r"train-images-idx3-ubyte\.gz cannot be read"):
        data.load("mnist", tmp_path)


@pytest.mark.parametrize("size", [0, 3073, 3074 * 2 - 1])
def test_cut_off_cifar_files_are_refused(tmp_path, size):
    images, labels = make_split(2, (3, 32, 32))
    write(tmp_path / "cifar-100-binary/train.bin", pack_cifar(images, labels, labels)[:size])
    with pytest.raises(FireflyError, match=r"train\.bin cannot be read"):
        data.load("cifar100", tmp_path)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("cut", [0, 60, 128, 140, -1000, -3])
def test_cut_off_matlab_files_are_refused(tmp_path, compressed, cut):
    images, labels = make_split(4, (3, 32, 32))
    write(tmp_path / "test_32x32.mat", pack_mat(images, labels % 9 + 1, compressed=compressed, label_type="f8")[:cut])
    with pytest.raises(FireflyError, match=r"test_32x32\.mat cannot be read"):
        data.load("svhn", tmp_path, "test")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), value=st.integers(0, 255), compressed=st.booleans())
def test_a_changed_byte_never_raises_anything_else(tmp_path, place, value, compressed):
    images, labels = make_split(3, (3, 32, 32))
    raw = bytearray(pack_mat(images, labels % 9 + 1, compressed=compressed))
    raw[place % len(raw)] = value
    write(tmp_path / "test_32x32.mat", bytes(raw))
    try:
        assert len(data.load("svhn", tmp_path, "test")) == 3
    except FireflyError as error:
        assert "test_32x32.mat" in str(error)


# ---- batches


def number_images(counts, name="cifar10"):
    """Images that all differ: image i holds the number i in its first two pixels."""
    total = sum(counts)
    images = torch.zeros(total, 3, 2, 2, dtype=torch.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = torch.arange(total) // 256, torch.arange(total) % 256
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return data.Images(images, labels, len(counts), name)


def read_numbers(part):
    return (part.images[:, 0, 0, 0].long() * 256 + part.images[:, 0, 0, 1].long()).tolist()


@settings(max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(0, 60), min_size=1, max_size=6), where=st.floats(0, 1), seed=st.integers(0, 9))
def test_hold_out_parts_every_class_in_proportion(counts, where, seed):
    total = sum(counts)
    if total < 2:
        return
    count = 1 + round(where * (total - 2))
    whole = number_images(counts)
    train, held = data.hold_out(whole, count, seed)
    assert len(held) == count and sorted(read_numbers(train) + read_numbers(held)) == list(range(total))
    for label, size in enumerate(counts):
        assert abs(int((held.labels == label).sum()) - size * count / total) < 1
    assert torch.equal(whole.labels[read_numbers(held)], held.labels)
    assert read_numbers(data.hold_out(whole, count, seed)[1]) == read_numbers(held)


def test_hold_out_depends_on_the_seed_and_refuses_bad_counts():
    whole = number_images([50] * 10)
    assert read_numbers(data.hold_out(whole, 100, 0)[1]) != read_numbers(data.hold_out(whole, 100, 1)[1])
    for count in (0, 500, -1):
        with pytest.raises(FireflyError, match=f"count={count}"):
            data.hold_out(whole, count)


def test_normalize_gives_zero_mean_and_unit_deviation():
    images = torch.from_numpy(make_split(50, (3, 8, 8))[0])
    floats = images.double() / 255
    mean, std = floats.mean((0, 2, 3)), floats.std((0, 2, 3))
    for batch in (images, floats):
        result = data.normalize(batch, mean, std).double()
        torch.testing.assert_close(result.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-5, rtol=0)
        torch.testing.assert_close(result.std((0, 2, 3)), torch.ones(3).double(), atol=1e-5, rtol=0)


def find_crops(image, pad, flip):
    """Every image that padding, cropping and mirroring can make of one (C, H, W)."""
    high, wide = image.shape[1:]
    padded = torch.zeros(image.shape[0], high + 2 * pad, wide + 2 * pad, dtype=image.dtype)
    padded[:, pad : pad + high, pad : pad + wide] = image
    crops = [padded[:, i : i + high, j : j + wide] for i in range(2 * pad + 1) for j in range(2 * pad + 1)]
    return crops + [crop.flip(-1) for crop in crops] if flip else crops


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("pad", "flip"), [(2, True), (1, False), (0, True)])
def test_augment_gives_each_image_its_own_crop_and_mirroring(dtype, pad, flip):
    image = torch.randint(1, 256, (2, 5, 6), generator=torch.Generator().manual_seed(0)).to(dtype)
    batch = image.repeat(3000, 1, 1, 1)
    result = data.augment(batch, torch.Generator().manual_seed(0), pad, flip)
    assert result.dtype == dtype and result.shape == batch.shape and result.is_contiguous()
    crops = torch.stack(find_crops(image, pad, flip))
    same = (result[:, None] == crops[None]).flatten(2).all(-1)  # (N, crops)
    assert (same.sum(1) == 1).all()  # each is one of the possible crops ...
    expected = len(batch) / len(crops)
    assert (same.sum(0) > expected / 2).all() and (same.sum(0) < expected * 2).all()  # ... and all are as likely


def test_augment_keeps_images_apart_and_follows_its_generator():
    batch = torch.arange(1, 41).view(40, 1, 1, 1).expand(40, 3, 8, 8).to(torch.uint8)
    first, again, other = (data.augment(batch, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(first.amax((1, 2, 3)), torch.arange(1, 41, dtype=torch.uint8))
    assert ((first == 0) | (first == batch)).all()


@pytest.mark.gpu
def test_augment_is_random_inside_a_cuda_graph():
    batch = torch.randint(1, 256, (64, 3, 32, 32), device="cuda", dtype=torch.uint8)
    mean, std = torch.tensor([0.5, 0.4, 0.3], device="cuda"), torch.ones(3, device="cuda")
    data.normalize(data.augment(batch), mean, std)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        crops = data.augment(batch)
        data.normalize(crops, mean, std)
    results = []
    for _ in range(2):
        graph.replay()
        results.append(crops.clone())
    assert not torch.equal(*results)
    possible = torch.stack(find_crops(batch[0].cpu(), 4, True))
    for result in results:
        assert (result[0].cpu() == possible).flatten(1).all(1).any()


# ---- downloads


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
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : self.server.stop_at])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), Shelf) as shelf:
        shelf.shelf, shelf.asked, shelf.ranges, shelf.stop_at = {}, [], True, None
        thread = threading.Thread(target=shelf.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield shelf
        shelf.shutdown()
        thread.join()


def make_tar(*members, **content):
    """A tar.gz of TarInfos without content, and of files by name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, raw in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
        for info in members:
            tar.addfile(info)
    return buffer.getvalue()


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


def make_member(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "member",
    [
        make_member("../outside.txt", tarfile.REGTYPE),
        make_member("cifar-100-binary/../../outside.txt", tarfile.REGTYPE),
        make_member("/tmp/firefly-outside.txt", tarfile.REGTYPE),
        make_member("link", tarfile.SYMTYPE, "/etc/passwd"),
        make_member("link", tarfile.LNKTYPE, "cifar-100-binary/train.bin"),
        make_member("device", tarfile.CHRTYPE),
        make_member("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.type.decode()}",
)
def test_archives_that_reach_outside_are_not_unpacked(tmp_path, server, monkeypatch, member):
    offer(server, monkeypatch, make_tar(member, **{"cifar-100-binary/train.bin": bytes(3074)}))
    with pytest.raises(FireflyError, match=f"holds '{member.name}'.*nothing unpacked"):
        download.fetch("cifar100", tmp_path / "root", progress=False)
    assert [file.name for file in tmp_path.rglob("*")] == ["root", "made-up.tar.gz"]


def test_broken_or_incomplete_archives_are_refused(tmp_path, server, monkeypatch, cifar100):
    offer(server, monkeypatch, cifar100[: len(cifar100) // 2])
    with pytest.raises(FireflyError, match="cannot be unpacked"):
        download.fetch("cifar100", tmp_path / "broken", progress=False)
    offer(server, monkeypatch, make_tar(**{"cifar-100-binary/train.bin": bytes(3074)}))
    with pytest.raises(FireflyError, match=r"cifar-100-binary/test\.bin did not come"):
        download.fetch("cifar100", tmp_path / "incomplete", progress=False)


def test_every_data_set_has_addresses_for_all_its_files():
    assert list(download.ADDRESSES) == list(data.SETS)
    for name, remotes in download.ADDRESSES.items():
        wanted = set(data.SETS[name].train + data.SETS[name].test)
        given_files = {remote.path.removesuffix(".gz") for remote in remotes}
        assert wanted == given_files or remotes[0].path.endswith(".tar.gz")
        for remote in remotes:
            assert len(bytes.fromhex(remote.md5)) == 16
            assert all(host.startswith("http") and host.endswith("/") for host in remote.hosts)


# ---- the digits of the package


def test_the_digits_of_the_package_are_whole_and_small():
    train, train_labels, test, test_labels = digits.load()
    assert train.shape == (6000, 1, 14, 14) and test.shape == (2000, 1, 14, 14)
    assert train_labels.dtype == test_labels.dtype == torch.int64
    assert len(train_labels) == 6000 and len(test_labels) == 2000
    for images, labels in ((train, train_labels), (test, test_labels)):
        assert images.min() == 0 and images.max() == 1
        assert torch.equal((images * 15).round() / 15, images)
        assert labels.bincount(minlength=10).min() > 0.07 * len(labels) and labels.max() == 9
    folder = files("firefly.vision")
    assert len(folder.joinpath("digits.npz").read_bytes()) < 600_000
    assert "CC BY-SA 3.0" in folder.joinpath("digits.txt").read_text()


def test_the_digits_of_the_package_can_be_told_apart():
    """The nearest class mean already reads most digits, so the labels belong to the images."""
    train, train_labels, test, test_labels = digits.load()
    means = torch.stack([train[train_labels == label].flatten(1).mean(0) for label in range(10)])
    guesses = torch.cdist(test.flatten(1), means).argmin(1)
    assert (guesses == test_labels).float().mean() > 0.75


def test_packed_digits_come_back_as_averages_in_16_levels(tmp_path, monkeypatch):
    images, labels = make_split(40, (1, 28, 28))
    whole = data.Images(torch.from_numpy(images), torch.from_numpy(labels).long(), 10, "mnist")
    digits.pack(whole, whole, tmp_path / "digits.npz", counts=(20, 8))
    monkeypatch.setattr(digits, "files", lambda _: tmp_path)
    train, train_labels, test, test_labels = digits.load()
    exact = torch.nn.functional.avg_pool2d(whole.images.float() / 255, 2)
    assert (train - exact[::2]).abs().max() <= 0.5 / 15 + 1e-6 and torch.equal(train_labels, whole.labels[::2])
    assert (test - exact[::5]).abs().max() <= 0.5 / 15 + 1e-6 and torch.equal(test_labels, whole.labels[::5])
    with pytest.raises(FireflyError, match="cannot pack 41 train images of 40"):
        digits.pack(whole, whole, tmp_path / "digits.npz", counts=(41, 8))
