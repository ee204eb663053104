"""What runs in the process of one environment."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import traceback
from multiprocessing import connection, parent_process
from typing import TYPE_CHECKING, Any

from gymnasium.vector.utils import CloudpickleWrapper

from guerdon.envs.ids import UnusableEnvironmentError
from guerdon.envs.memory import SharedRows, write_row
from guerdon.envs.rows import copied
from guerdon.extras import MissingExtraError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from guerdon.envs.wrappers import AnyEnv

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""Environment variables of a process beside which others want to run."""


def run(pipe: Connection) -> None:
    """Serves one environment until the other side says ``close`` or is gone.

    It is sent (command, argument) and answers with (kind, content):
    ``build`` (recipe, number, environments in all) → ``spaces``; ``memory`` (name) → nothing;
    ``reset`` (seed) → ``reset``; ``step`` (action) → ``step``. An exception is answered with
    ``error``, or with ``refused`` if the environment cannot be made in this way, and ends it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that is in charge
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # and so is whatever else a scheduler sends to all of a group
    os.environ.update(ONE_THREAD)  # for what the environment imports
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        _serve(pipe)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except (UnusableEnvironmentError, MissingExtraError) as error:
        pipe.send(("refused", str(error)))
    except BaseException:  # also SystemExit: whatever ends the environment has to be reported
        with contextlib.suppress(OSError):
            pipe.send(("error", traceback.format_exc()))


def cloudpickled(data: Any) -> Any:
    """Something that travels with classes and functions of notebooks and scripts; `fn` is it."""
    return CloudpickleWrapper[Any](data)


def _leave_with_parent() -> None:
    """Ends this process when its parent dies, even if the environment hangs."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _serve(pipe: Connection) -> None:
    command, (recipe, index, n_envs) = pipe.recv()
    assert command == "build"
    env: AnyEnv = recipe.fn.build(index)
    pipe.send(("spaces", cloudpickled((env.observation_space, env.action_space))))
    memory: SharedRows | None = None
    try:
        while True:
            command, argument = pipe.recv()
            if command == "step":
                pipe.send(("step", _step(env, argument, memory, index)))
            elif command == "reset":
                observation, _ = env.reset(seed=argument)
                pipe.send(("reset", _put(observation, memory and memory.obs_next, index)))
            elif command == "memory":
                memory = SharedRows(env.observation_space, n_envs, argument)
            else:
                break
    finally:
        env.close()
        if memory is not None:
            memory.close()


def _step(env: AnyEnv, action: Any, memory: SharedRows | None, index: int) -> tuple[Any, ...]:
    """A transition, and the first observation of the next episode where it ended one."""
    observation, reward, terminated, truncated, info = env.step(action)
    done = bool(terminated or truncated)
    if done and memory is None:
        observation = copied(observation)  # the environment may reset into the array it gave
    observation = _put(observation, memory and memory.obs_next, index)
    first = _put(env.reset()[0], memory and memory.obs, index) if done else None
    return float(reward), bool(terminated), bool(truncated), info, observation, first


def _put(observation: Any, rows: Any, index: int) -> Any:
    """Puts an observation into shared memory; without, it has to travel."""
    if rows is None:
        return observation
    write_row(rows, index, observation)
    return None
