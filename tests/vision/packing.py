"""Small made-up files in the formats of the data sets."""

import io
import struct
import tarfile
import zlib

import numpy as np
import torch


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


def save_idx(root, images, labels, split="train"):
    write(root / f"MNIST/raw/{split}-images-idx3-ubyte", images)
    write(root / f"MNIST/raw/{split}-labels-idx1-ubyte", labels)


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
