"""Python programs in processes of their own, which start at once.

PyTorch takes seconds to import. So one process imports the package, and every program is a fork of
that: it has the package, and nothing of the tests.
"""

import atexit
import functools
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import types
from pathlib import Path

IMPORTED = ("guerdon.cli", "guerdon.entry", "guerdon.training.fit")


class Program:
    """A running program.

    Args:
        arguments: Those of the command `python`: ``-m MODULE`` or ``-c CODE``, and its own.
        cwd: Its working directory.
        terminal: A terminal for it; without one, `stdout` and `stderr` are files to read from.
    """

    def __init__(self, *arguments, cwd=None, terminal=None):
        order = {
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd or Path.cwd()),
            "env": {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"},
        }
        self.returncode = None
        self._state, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pipes = [os.pipe(), os.pipe()] if terminal is None else []
        self._files = [os.fdopen(reading, encoding="utf-8") for reading, _ in pipes]
        if pipes:
            self.stdout, self.stderr = self._files
        ends = [writing for _, writing in pipes] or [terminal]
        socket.send_fds(_server(os.getpid()), [json.dumps(order).encode()], [far.fileno(), *ends])
        far.close()
        for _, writing in pipes:
            os.close(writing)
        self.pid = int(self._state.recv(64))

    def send_signal(self, number):
        if self.returncode is None:  # until then, no other process has this number
            os.kill(self.pid, number)

    def wait(self):
        """Waits for its end; returns the exit code, for a signal the negative number of that."""
        if self.returncode is None:
            self.returncode = int(self._state.recv(64))
            self._state.close()
        return self.returncode

    def communicate(self):
        """All that it writes to `stdout` and `stderr`; to the latter no more than a pipe holds."""
        written = self.stdout.read(), self.stderr.read()
        self.wait()
        return written

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        if error is not None:
            self.send_signal(signal.SIGKILL)
        for file in self._files:
            file.close()
        self.wait()


@functools.cache
def _server(_pid):
    """The socket that orders are sent to, one in each process of tests."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # -P: what lies beside this file is not for programs to import.
    command = [sys.executable, "-P", __file__, str(far.fileno())]
    process = subprocess.Popen(
        command, pass_fds=[far.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
    )
    far.close()
    atexit.register(process.wait)
    atexit.register(near.close)  # first, which ends the process
    return near


# --- in the other process


def serve(orders):
    """Forks for each order; returns it, and its descriptors, in the process that it is for."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        order, descriptors, *_ = socket.recv_fds(orders, 1 << 20, 3)
        if not order:
            os._exit(0)
        if not os.fork():
            break
        for descriptor in descriptors:
            os.close(descriptor)
    orders.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    state, *outputs = descriptors
    program = os.fork()
    if not program:
        os.close(state)
        return json.loads(order), outputs
    for descriptor in outputs:
        os.close(descriptor)
    watch(program, socket.socket(fileno=state))
    os._exit(0)


def watch(program, state):
    """Says the number of a process and how it ends; then keeps the number until it is heard."""
    state.send(str(program).encode())
    ended = os.waitid(os.P_PID, program, os.WEXITED | os.WNOWAIT)
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    state.send(str(code).encode())
    state.recv(1)


def become(order, outputs):
    """Runs a program as the command `python` does."""
    if len(outputs) == 1:
        os.login_tty(outputs[0])
    else:
        for number, descriptor in enumerate(outputs, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
    # A shell lets what it puts into the background ignore Ctrl-C, and so pytest, and so this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.path.insert(0, order["cwd"])
    option, what, *arguments = order["arguments"]
    sys.argv = [option, *arguments]
    if option == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = types.ModuleType("__main__")  # lives until the very end
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    become(*serve(socket.socket(fileno=int(sys.argv[1]))))
