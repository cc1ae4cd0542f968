"""Reading the data sets from small made-up files, whole and damaged ones."""

import dataclasses
import gzip
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packing import assert_same, make_split, pack_cifar, pack_element, pack_idx, pack_mat, save_idx, write

from firefly.errors import FireflyError
from firefly.vision import data


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


def measure_peak(call):
    """The most memory that Python's objects held during a call, in bytes."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refuse(name, root, match):
    with pytest.raises(FireflyError, match=match):
        data.load(name, root, "test")


def test_a_small_gzip_file_that_stands_for_much_is_not_read_to_its_end(tmp_path):
    images, labels = make_split(2, (28, 28))
    save_idx(tmp_path, pack_idx(images), pack_idx(labels), split="t10k")
    part = gzip.compress(bytes(20_000_000))
    bomb = write(tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte.gz", gzip.compress(pack_idx(labels)) + 50 * part)
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    assert bomb.stat().st_size < 2_000_000  # for a gigabyte
    peak = measure_peak(lambda: refuse("mnist", tmp_path, "more than 10,008 bytes"))
    assert peak < 20_000_000


@pytest.mark.parametrize("content", ["one element", "many elements", "one matrix of empty elements"])
def test_a_small_matlab_file_that_stands_for_much_is_not_inflated(tmp_path, monkeypatch, content):
    monkeypatch.setitem(data.SETS, "svhn", dataclasses.replace(data.SETS["svhn"], images=(1, 1)))
    if content == "one matrix of empty elements":
        parts = [pack_element(14, bytes(1_000_000))]
    else:
        parts = [pack_element(14, bytes(50_000_000))] if content == "one element" else 100 * [bytes(500_000)]
    squeezed = [zlib.compress(part) for part in parts]
    body = b"".join(struct.pack("<II", 15, len(part)) + part for part in squeezed)
    write(tmp_path / "test_32x32.mat", b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + body)
    peak = measure_peak(lambda: refuse("svhn", tmp_path, "test_32x32.mat cannot be read"))
    assert peak < 5_000_000


def test_files_with_more_images_than_the_set_has_are_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(data.SETS, "cifar100", dataclasses.replace(data.SETS["cifar100"], images=(2, 1)))
    images, labels = make_split(2, (3, 32, 32))
    write(tmp_path / "cifar-100-binary/train.bin", pack_cifar(images, labels, labels))
    write(tmp_path / "cifar-100-binary/test.bin", pack_cifar(images, labels, labels))
    assert len(data.load("cifar100", tmp_path)) == 2
    refuse("cifar100", tmp_path, r"test\.bin cannot be read \(it holds more than 3,074 bytes\)")


@pytest.mark.parametrize("name", [5, None, "", "a\0b"])
def test_names_that_are_none_are_refused(name):
    with pytest.raises(FireflyError, match="unknown data set"):
        data.load(name)


@pytest.mark.parametrize("root", [5, "a\0b", ["data"]])
def test_folders_that_are_none_are_refused(root):
    with pytest.raises(FireflyError, match="not a folder"):
        data.load("mnist", root)
