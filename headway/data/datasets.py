"""load: a data set by its name or by the path of the user's own files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from headway.base.cache import cache_dir
from headway.base.errors import DataError
from headway.base.registered import is_known, nearest_known
from headway.base.wording import option
from headway.data.arrays import Dataset
from headway.data.files import is_path, load_path
from headway.data.sources import download as fetch
from headway.data.sources import prepared
from headway.data.sources.archive_sets import SETS
from headway.data.sources.catalogue import CONTENT, DATASETS, REGISTERED, Entry
from headway.data.sources.registries import LOADERS, Places, digits

__all__ = ["DATASETS", "Entry", "load"]


def load(name_or_path: str, *, cache: Path | None = None, source: Path | None = None) -> Dataset:
    """A known data set (from `source`, HEADWAY_DATA, the cache or the network), or the user's own files.

    A known name wins over a file of that name; write ./digits for the file.
    """
    name = str(name_or_path)
    if source is not None and not Path(source).expanduser().is_dir():
        where = f"{source} ({option('data_dir')})"
        raise DataError(f"{where} is no folder: name the folder that holds {name}, or leave it out")
    if name not in DATASETS:
        if is_path(name):
            return load_path(name)
        if not is_known(name, DATASETS):
            known = nearest_known(name, DATASETS)
            raise DataError(f"data '{name}' is neither a known data set nor an existing path: {known}")
    if name in REGISTERED:
        return load_registered(name)
    if name == "digits":
        return digits()
    folders = [source, os.environ.get("HEADWAY_DATA")]
    named = tuple(Path(folder).expanduser() for folder in folders if folder)
    for folder in named:
        if not folder.is_dir():
            raise DataError(f"{folder} (HEADWAY_DATA) is no folder: name the folder that holds {name}, or unset it")
    places = Places(name, cache_dir(cache), named)
    return load_archive(places) if name in SETS else load_known(places)


def load_registered(name: str) -> Dataset:
    """What the user's own function gives, under the name it was registered by."""
    try:
        data = REGISTERED[name]()
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"data '{name}': its function fails ({type(error).__name__}: {error}); correct the registered function"
        ) from error
    if not isinstance(data, Dataset):
        raise DataError(f"data '{name}': its function returns a {type(data).__name__}; return a headway.Dataset")
    return replace(data, name=name)


def load_known(places: Places) -> Dataset:
    """A set whose arrays have one right hash, whichever way they come."""
    path, content = places.cache / "prepared" / f"{places.name}.safetensors", CONTENT[places.name]
    if data := prepared.read(path, content):
        return data
    with fetch.locked(places.cache):
        if path.is_file() and (data := prepared.read(path, content)):  # another process made it meanwhile
            return data
        data = LOADERS[places.name](places)
        if data.hash() != content:
            raise DataError(f"{places.name}: the decoded arrays are not the published ones: fetch the files again")
        prepared.write(path, data)
    return data


def load_archive(places: Places) -> Dataset:
    """A set read from an archive or folder; its decoded arrays are kept as long as that does not change."""
    known = SETS[places.name]
    found = known.find(places)
    folder = places.cache / "prepared"
    if found and (data := prepared.read(folder / f"{places.name}-{known.key(found)}.safetensors")):
        return data
    with fetch.locked(places.cache):
        found = known.find(places) or known.fetch(places)
        data = known.load(found)
        prepared.write(folder / f"{places.name}-{known.key(found)}.safetensors", data)
    return data
