"""A forked worker process of the pool, and the pipe to it."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

GONE = (EOFError, OSError)  # raised when reading from the pipe of a dead worker
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
ERROR = "error"


class Worker:
    """A forked process and the pipe to it."""

    def __init__(self, work: Callable[[Connection], None]):
        self.pipe, theirs = multiprocessing.Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.pipe.close()
                die_with_parent()
                work(theirs)
            except BaseException as error:
                send_error(theirs, error)
            finally:
                os._exit(0)
        theirs.close()

    def send(self, message: Any) -> None:
        """Send a message. That a worker is dead is detected when its answer is read."""
        with contextlib.suppress(OSError):
            self.pipe.send(message)

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self.pipe.close()
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def send_error(pipe: Connection, error: BaseException) -> None:
    """Send an error to the run with its traceback; an error that cannot be pickled is sent as text."""
    trace = "".join(traceback.format_exception(error))
    try:
        copy.copy(error)  # calls the constructor as unpickling does, and so fails here if unpickling would fail
        pipe.send((ERROR, error, trace))
    except Exception:
        pipe.send((ERROR, RuntimeError(f"{type(error).__name__}: {error}"), trace))


def received(pipe: Connection) -> Any:
    """The worker's answer. An error of the worker is raised here, with the worker's traceback as its cause."""
    answer = pipe.recv()
    if answer[0] == ERROR:
        raise answer[1] from RuntimeError(f"in a worker:\n{answer[2]}")
    return answer


def die_with_parent() -> None:
    """Let the kernel kill this worker when the run ends; ignore SIGINT and SIGTERM, which the run handles."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(1)
