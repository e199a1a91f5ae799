"""A connection to Ray: to a running cluster, or to a private one on this machine that ends with the run."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headway.base.errors import ConfigError, EngineError
from headway.base.wording import option
from headway.engines.ray.guard import Guard

ENGINES = ("local", "ray")
LOOPBACK = "127.0.0.1"
PROBE_SECONDS = 5.0
TOKEN = "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=<its token file>"  # noqa: S105  names, no secret
SWITCHES = {
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray sends no usage statistics
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def check_engine(engine: str, address: str | None) -> None:
    """Raise ConfigError for an engine that cannot be used, before anything is built or written."""
    if engine not in ENGINES:
        raise ConfigError(f"engine={engine}: there is no such engine; use local or ray")
    if engine == "local":
        if address is not None:
            raise ConfigError(f"address={address}: only the engine ray has an address; add {option('engine', 'ray')}")
        return
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("engine=ray: Ray is not installed here; pip install 'headway[ray]'")
    if address is not None and not imported().is_initialized():
        probe_address(address)


def imported() -> Any:
    """The ray package, imported at its first use, with usage statistics switched off."""
    for name, value in SWITCHES.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"engine=ray: Ray cannot be imported ({error}); pip install 'headway[ray]'") from None
    return ray


def probe_address(address: str) -> str:
    """The head's HOST:PORT, checked by connecting to it: Ray itself would retry for minutes."""
    found = found_head() if address == "auto" else address
    host, colon, port = found.rpartition(":")
    if not colon or not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"address={address}: write HOST:PORT of the cluster's head, such as 10.0.0.1:6379, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS).close()
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise ConfigError(
            f"address={address}: nothing answers there ({why}); start a head with `ray start --head`, or leave out "
            f"{option('address')} for a private cluster on this machine"
        ) from None
    return found


def found_head() -> str:
    """HOST:PORT of the cluster that RAY_ADDRESS names, or of the one last started on this machine."""
    imported()
    from ray._private.services import get_ray_address_from_environment

    with contextlib.suppress(ConnectionError):
        if found := get_ray_address_from_environment("auto", None):
            return str(found)
    raise ConfigError("address=auto: no Ray cluster is found on this machine; give HOST:PORT or set RAY_ADDRESS")


class Session:
    """A connection to Ray. `close` ends a private cluster; one that was running before is left running."""

    def __init__(self, address: str | None, cpus: int) -> None:
        self.ray = imported()
        self._owned = not self.ray.is_initialized()
        self._folder = ""
        self._before: dict[str, str | None] = {}
        self._print: Any = None  # Ray's own function, replaced while connected
        self._guard: Guard | None = None
        if not self._owned:
            return  # the calling program is already connected
        try:
            self._silence()
            with handlers_kept():
                if address is None:
                    self._start_private(cpus)
                else:
                    self._attach(address)
        except BaseException:
            self.close()
            raise

    def cpus(self) -> int:
        return int(self.ray.cluster_resources().get("CPU", 0))

    def gpus(self) -> int:
        return int(self.ray.cluster_resources().get("GPU", 0))

    def _silence(self) -> None:
        """Keep Ray from printing worker deaths to standard output; WorkerGroup reports them."""
        from ray._private import worker

        self._print = worker.print_to_stdstream
        worker.print_to_stdstream = lambda *args, **kwargs: None

    def _attach(self, address: str) -> None:
        head = probe_address(address)
        with captured_stderr() as written:
            try:
                self.ray.init(address=head, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, RuntimeError, ValueError, self.ray.exceptions.RayError) as error:
                if "InvalidAuthToken" in written():
                    raise EngineError(
                        f"address={address}: the cluster requires a token, and ours is missing or wrong; set {TOKEN}"
                    ) from None
                raise EngineError(
                    f"address={address}: the cluster cannot be joined ({first_line(error)}); run headway on one of "
                    f"its nodes, with the same versions of Ray and Python, and with {TOKEN} if it requires a token"
                ) from None

    def _start_private(self, cpus: int) -> None:
        """Start a cluster that listens on loopback only, with a random token, no dashboard and a temporary folder."""
        from ray._private import ray_constants

        self._before = put_in_environment({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
        base = "/tmp" if os.path.isdir("/tmp") else None  # noqa: S108  names of sockets there must be short
        self._folder = tempfile.mkdtemp(prefix="hw-ray-", dir=base)
        self._guard = Guard(self._folder)
        reachable = ray_constants.ENABLE_RAY_CLUSTER
        ray_constants.ENABLE_RAY_CLUSTER = False  # else Ray replaces 127.0.0.1 by the machine's own address
        try:
            with captured_stderr():
                self.ray.init(
                    address="local", num_cpus=cpus, include_dashboard=False, _node_ip_address=LOOPBACK,
                    _temp_dir=self._folder, log_to_driver=False, logging_level=logging.ERROR,
                )  # fmt: skip
        except (OSError, RuntimeError, ValueError, self.ray.exceptions.RayError) as error:
            raise EngineError(
                f"engine=ray: a private cluster cannot be started ({first_line(error)}); "
                f"use {option('engine', 'local')}"
            ) from None
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = reachable
        if (bound := self.ray.nodes()[0]["NodeManagerAddress"]) != LOOPBACK:
            raise EngineError(f"engine=ray: this Ray listens on {bound} and not only on loopback; use ray 2.60")

    def close(self) -> None:
        if self._owned and self.ray.is_initialized():
            with handlers_kept():
                self.ray.shutdown()
        if self._print is not None:
            from ray._private import worker

            worker.print_to_stdstream, self._print = self._print, None
        if self._before:
            put_in_environment(self._before)
            self._before = {}
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._guard is not None:
            self._guard.stop()


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


@contextlib.contextmanager
def captured_stderr() -> Iterator[Callable[[], str]]:
    """Capture standard error, also what Ray's C++ code writes there; yields a function that returns the text so far."""
    with tempfile.TemporaryFile() as kept:

        def read() -> str:
            kept.seek(0)
            return kept.read().decode(errors="replace")

        try:
            real = os.dup(2)
        except OSError:  # standard error is closed: there is nothing to capture
            yield read
            return
        try:
            os.dup2(kept.fileno(), 2)
            yield read
        finally:
            os.dup2(real, 2)
            os.close(real)


def put_in_environment(values: Mapping[str, str | None]) -> dict[str, str | None]:
    """Set environment variables (None: remove), make Ray read them again, and return the previous values."""
    from ray._raylet import AuthenticationTokenLoader, Config

    before = {name: os.environ.get(name) for name in values}
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    Config.initialize("")  # whether a token is required, before the token itself: Ray's ending threads still read both
    AuthenticationTokenLoader.instance().reset_cache()
    return before


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """Restore the handlers of SIGINT and SIGTERM at the end of the block, as Ray installs its own for SIGTERM."""
    held = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, TypeError):  # not the main thread, or a handler Python did not set
            for n, handler in held.items():
                signal.signal(n, handler)
