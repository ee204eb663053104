"""Python programs in processes of their own, which start at once.

PyTorch and numba take seconds to import. So one process imports them and the package, and every
program is a fork of that: it has the package, and nothing of the tests.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
from pathlib import Path

IMPORTED = ("guerdon.cli", "guerdon.entry", "guerdon.training.fit", "torch.utils.tensorboard")


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
        pipes = [os.pipe(), os.pipe()] if terminal is None else []
        self._files = [os.fdopen(reading, encoding="utf-8") for reading, _ in pipes]
        if pipes:
            self.stdout, self.stderr = self._files
        self._state = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._state.connect(server(os.getpid()))
        given = [writing for _, writing in pipes] or [terminal]
        socket.send_fds(self._state, [json.dumps(order).encode()], given)
        for _, writing in pipes:
            os.close(writing)
        self.pid = int(self._state.recv(64))

    def send_signal(self, number):
        if self.returncode is None:  # until then, no other process has this number
            os.kill(self.pid, number)

    @property
    def ended(self):
        """Whether it has ended; `wait` does not have to wait then."""
        return self.returncode is not None or bool(select.select([self._state], [], [], 0)[0])

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


COMMAND = """#!{python} -IS
import json, os, signal, socket, sys
state = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
state.connect({address!r})
arguments = ["-m", "guerdon", *sys.argv[1:]]
order = {{"arguments": arguments, "cwd": os.getcwd(), "env": dict(os.environ)}}
socket.send_fds(state, [json.dumps(order).encode()], [1, 2])
program = int(state.recv(64))
signal.signal(signal.SIGTERM, lambda number, _: os.kill(program, number))
code = int(state.recv(64))
sys.exit(code if code >= 0 else 128 - code)
"""


def write_command(folder):
    """Writes a command ``guerdon`` that starts such a program, for shells."""
    path = Path(folder, "guerdon")
    path.write_text(COMMAND.format(python=sys.executable, address=server(os.getpid())))
    path.chmod(0o755)


@functools.cache
def server(_pid):
    """The address that orders are sent to, one for each process of tests."""
    folder = tempfile.mkdtemp(prefix="guerdon-")
    address = f"{folder}/orders"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address)
    listening.listen()
    # -P: programs can import `tests`, but not what lies in that folder.
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, str(listening.fileno())],
        stdin=subprocess.PIPE,  # where it is closed, even by a kill, the other process ends
        pass_fds=[listening.fileno()],
        start_new_session=True,
    )
    listening.close()

    @atexit.register
    def end():
        process.stdin.close()
        process.kill()  # a fork of this process may still have the pipe
        process.wait()
        shutil.rmtree(folder)

    return address


# --- in the other process


def serve(listening):
    """Forks for each order; returns it, and its descriptors, in the process that it is for."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if sys.stdin in select.select([listening, sys.stdin], [], [])[0]:
            os._exit(0)
        state, _ = listening.accept()
        if not os.fork():
            break
        state.close()
    listening.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    order, outputs, *_ = socket.recv_fds(state, 1 << 20, 2)
    program = os.fork()
    if not program:
        state.close()
        return json.loads(order), outputs
    for descriptor in outputs:
        os.close(descriptor)
    watch(program, state)
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
        for number, descriptor in enumerate([os.open(os.devnull, os.O_RDONLY), *outputs]):
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
    sys.path.append(str(Path(__file__).parents[1]))
    for name in IMPORTED:
        importlib.import_module(name)
    ones = sys.modules["torch"].ones(1, 1)
    sys.modules["guerdon.ops.returns"].backward_scan(ones, ones)  # loads numba
    gc.collect()
    gc.freeze()  # so that the end of a program does not copy all that it shares
    become(*serve(socket.socket(fileno=int(sys.argv[1]))))
