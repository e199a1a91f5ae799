"""Downloads: into a locked cache, checked before they get their final name."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.base.errors import DataError, DiskError
from headway.data.sources.archives import Want, tar_stream

log = logging.getLogger(__name__)
LOCK_SECONDS = 3600
CA_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE")


class Unreachable(Exception):
    """One way to a file did not work; the message says why in a few words, without any host name."""


@contextmanager
def locked(cache: Path) -> Iterator[None]:
    """One process at a time fills the cache; what a killed download left behind is swept."""
    from filelock import FileLock, Timeout

    with writing(cache):
        cache.mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache / ".lock")
        try:
            lock.acquire(timeout=LOCK_SECONDS)
        except Timeout as error:
            raise DataError(
                f"another process has held {cache / '.lock'} for {LOCK_SECONDS} s: wait for it, or set "
                "HEADWAY_CACHE to another folder"
            ) from error
        try:
            shutil.rmtree(cache / "partial", ignore_errors=True)
            yield
        finally:
            lock.release()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say a full or read-only disk in one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskError(f"the disk of {folder} is full: free some space or set HEADWAY_CACHE") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise DataError(f"{folder} cannot be written: set HEADWAY_CACHE to a folder of your own") from error
        raise


def has_hash(path: Path, known: str) -> bool:
    """Whether a file has the hash `sha256:...` or `md5:...`."""
    algorithm, _, digest = known.partition(":")
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest() == digest


def from_url(url: str, known: str, target: Path, cache: Path) -> Path:
    """Download a file under its final name once its hash is right; one more try when it is not."""
    import pooch

    if target.is_file() and has_hash(target, known):
        return target
    pooch.get_logger().setLevel(logging.WARNING)  # it would print the address
    log.info("downloading %s", target.name)
    downloader = pooch.HTTPDownloader(chunk_size=1 << 20, timeout=30, **connection())
    for _ in range(2):
        try:
            done = pooch.retrieve(url, known, target.name, cache / "partial", downloader=downloader)
            return settle(Path(done), target)
        except OSError as error:
            if error.errno is not None and not isinstance(error, (ConnectionError, TimeoutError)):
                raise  # the disk, not the network
            raise Unreachable(in_words(error)) from error
        except ValueError:  # pooch: the hash differs
            log.warning("%s came with a wrong checksum", target.name)
    raise Unreachable(f"{target.name} came with a wrong checksum, twice")


def in_words(error: OSError) -> str:
    """Why a request failed; the exception's own text would name hosts."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status:
        return f"HTTP {status}"
    kind = type(error).__name__
    known = {"ConnectionError": "no connection", "SSLError": "its certificate is not trusted here"}
    return known.get(kind, "timed out" if "Timeout" in kind else kind)


def settle(done: Path, target: Path) -> Path:
    """Give a checked file its final name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(done, target)
    return target


def from_npm(package: str, version: str, sha256: str, target: Path, cache: Path) -> Path:
    """A package's tarball through the registry that the npm client is configured for."""
    known = f"sha256:{sha256}"
    if target.is_file() and has_hash(target, known):
        return target
    registry = npm_config("registry")
    try:
        if not registry.startswith(("http://", "https://")):
            raise Unreachable("no npm registry is configured (install npm or set NPM_CONFIG_REGISTRY)")
        url = f"{registry.rstrip('/')}/{package}/-/{package}-{version}.tgz"
        return from_url(url, known, target, cache)
    except Unreachable as failed:
        if not (npm := shutil.which("npm")):
            raise
        # npm knows what a plain GET does not: tokens and per-scope settings.
        with scratch(cache) as folder:
            options = [
                "--pack-destination",
                str(folder),
                "--silent",
                "--fetch-retries=0",
                "--fetch-timeout=30000",
            ]
            run([npm, "pack", f"{package}@{version}", *options], folder)
            packed = folder / f"{package}-{version}.tgz"
            if not packed.is_file():
                raise Unreachable(f"npm registry: {failed}") from failed
            if not has_hash(packed, known):
                raise Unreachable(f"{target.name} came with a wrong checksum") from failed
            return settle(packed, target)


def npm_config(key: str) -> str:
    """A setting of the npm client; empty where there is none."""
    if npm := shutil.which("npm"):
        value = run([npm, "config", "get", key]).strip()
    else:
        variable = f"npm_config_{key.replace('-', '_')}"
        value = os.environ.get(variable) or os.environ.get(variable.upper()) or ""
    return "" if value in ("null", "undefined") else value


def connection() -> dict[str, object]:
    """Certificates and proxy as pip and npm are configured, where requests does not know them already."""
    options: dict[str, object] = {}
    if not (os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")):
        named = [npm_config("cafile"), *(os.environ.get(v, "") for v in CA_VARIABLES)]
        if files := [file for file in named if file and Path(file).is_file()]:
            options["verify"] = files[0]
    if not (os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")) and (
        proxy := npm_config("https-proxy") or npm_config("proxy")
    ):
        options["proxies"] = {"https": proxy, "http": proxy}
    return options


def from_apt(package: str, want: Want, cache: Path) -> dict[str, bytes]:
    """Files of a Debian package, without root: apt fetches and verifies it, we read its tar."""
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if not (apt and dpkg):
        raise Unreachable("no apt")
    with scratch(cache) as folder:
        run([apt, "-qq", "download", package], folder)
        debs = sorted(folder.glob("*.deb"))
        if not debs:
            raise Unreachable(f"apt has no {package}")
        with subprocess.Popen(  # noqa: S603 - a fixed command on a file we have just fetched
            [dpkg, "--fsys-tarfile", str(debs[0])], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            return tar_stream(debs[0], process.stdout, want)


@contextmanager
def scratch(cache: Path) -> Iterator[Path]:
    """A temporary folder inside the cache, removed at the end of the block."""
    (cache / "partial").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache / "partial") as folder:
        yield Path(folder)


def run(command: list[str], folder: Path | None = None) -> str:
    """What a command prints; empty when it fails or hangs."""
    try:
        done = subprocess.run(  # noqa: S603 - npm and apt-get by their full path, no shell
            command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
