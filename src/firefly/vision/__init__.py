"""The data sets and the models of the paper's experiments (Sec. 3).

data      CIFAR-10/100, MNIST, FashionMNIST, SVHN from their standard files; holding out, normalising, augmenting
download  fetching those files from their official addresses
archive   unpacking what was fetched, bounded and only where it belongs
readers   the formats of the files
digits    8,000 small handwritten digits that ship with the package, for the demo
models    VGG-16, VGG-19 and MobileNetV1 of any widths
"""

from firefly.vision import data, digits, download, models

__all__ = ["data", "digits", "download", "models"]
