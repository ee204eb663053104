"""Starting or joining Ray, and waiting for the resources of a run."""

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from guerdon.config.files import Files, copied
from guerdon.config.imports import announce
from guerdon.config.schema import RuntimeConfig

log = logging.getLogger(__name__)
_STORE = 512 << 20  # bytes of shared memory: a few rollouts and weights
_AGENTS = "15"  # seconds
_CONNECT = 10.0  # seconds for reaching a cluster
REPORT = 30.0  # seconds between reports on what is missing
_ENDED = (
    "Error: the run has ended without saving, since Ray's raylet or GCS has died or its process "
    "was killed: continue from its last checkpoint with `guerdon train --resume RUN`"
)
_running = threading.Lock()  # while a run of this process has started or joined Ray

Bundles = Mapping[str, dict[str, float]]
"""Resources of each worker, by its name."""


@contextmanager
def connected(config: RuntimeConfig, bundles: Bundles, files: Files) -> Iterator[Files]:
    """Join the Ray cluster of an address, or start Ray on this machine and stop it at the end.

    Ray that this process has already started or joined is used as it is.

    Args:
        config: The section ``runtime``.
        bundles: Resources of each worker; Ray on this machine has as many, whether or not the
            machine has that many cores.
        files: Files that the workers of a cluster need.

    Yields:
        Those that were shipped.
    """
    if ray.is_initialized() and not _running.locked():
        with _end_reported():
            yield {}
        return
    if not _running.acquire(blocking=False):
        raise RuntimeError(
            "another run on Ray is going on in this process: wait for its end, use another "
            "process, or call ray.init() first, so that runs share Ray"
        )
    try:
        with _end_reported(), _joined(config, bundles, files) as shipped:
            yield shipped
    finally:
        _running.release()


@contextmanager
def _end_reported() -> Iterator[None]:
    """Print a sentence if this process ends inside: Ray ends it when its raylet or GCS has died."""
    watcher = subprocess.Popen(
        [sys.executable, "-IS", "-c", f"import sys; sys.stdin.read(1) or sys.exit({_ENDED!r})"],
        stdin=subprocess.PIPE,
        start_new_session=True,  # which signals to this process do not reach
    )
    try:
        yield
    finally:
        watcher.communicate(b"x")


@contextmanager
def _joined(config: RuntimeConfig, bundles: Bundles, files: Files) -> Iterator[Files]:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    files = {} if config.address is None else files
    if config.address is not None:
        options["address"] = config.address
    else:
        # Agents of Ray outlive a killed process for so long; Ray's default is a minute.
        os.environ.setdefault("RAY_gcs_server_request_timeout_seconds", _AGENTS)
        cpus = sum(bundle.get("CPU", 0.0) for bundle in bundles.values())
        options |= {
            "address": "local",  # whatever RAY_ADDRESS says
            "num_cpus": max(int(cpus + 0.999), 1),
            "include_dashboard": False,
            "object_store_memory": _STORE,
        }
    with _own_sigterm(), copied(files) as folder:
        if files:
            options["runtime_env"] = {"working_dir": folder}
        try:
            if config.address is not None and config.address != "auto":
                announce(config.address)  # a cluster runs code in this process
                host, _, port = config.address.rpartition(":")
                socket.create_connection((host, int(port)), _CONNECT).close()  # Ray hangs instead
            ray.init(**options)
        except (OSError, RuntimeError, ValueError) as error:
            if config.address is None:
                raise
            raise RuntimeError(
                f"there is no Ray cluster at 'runtime.address' {config.address!r} ({error}): write "
                "HOST:PORT or auto, start one with `ray start --head`, or leave the address out"
            ) from error
    try:
        yield files
    finally:
        ray.shutdown()


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def reserved(bundles: Bundles, wait_seconds: float) -> Iterator[PlacementGroup]:
    """Reserve resources for each worker, and free them at the end.

    While they are not there, a report says every 30 seconds what is wanted and what is there.

    Args:
        bundles: Resources of each worker.
        wait_seconds: Seconds after which to give up.
    """
    group = placement_group([*map(dict, bundles.values())], name=f"guerdon-{secrets.token_hex(8)}")
    try:
        deadline = time.monotonic() + wait_seconds
        while not group.wait(max(min(REPORT, deadline - time.monotonic()), 0.0)):
            if time.monotonic() >= deadline:
                raise RuntimeError(
                    f"the cluster does not have what this run needs: {shortage(bundles)}; add "
                    "nodes, use fewer workers, or set 'runtime.wait_seconds' higher"
                )
            log.warning("waiting for %s: %s", in_words(bundles), shortage(bundles))
        yield group
    finally:
        with suppress(Exception):  # Ray may be gone
            remove_placement_group(group)


def shortage(bundles: Bundles) -> str:
    """Return what is wanted, and what the cluster has and has free."""
    there, free = ray.cluster_resources(), ray.available_resources()
    parts = [f"there are {nodes()}"]
    for name in ("CPU", "GPU"):
        wanted = sum(bundle.get(name, 0.0) for bundle in bundles.values())
        parts.append(
            f"{wanted:g} {name}s are wanted, {there.get(name, 0):g} there and "
            f"{free.get(name, 0):g} free"
        )
    return ", ".join(parts)


def in_words(names: Iterable[str]) -> str:
    """Return names of workers by role: ``collector 0, 2; evaluator 0``."""
    roles: dict[str, list[str]] = {}
    for name in names:
        role, _, number = name.partition(" ")
        roles.setdefault(role, []).append(number)
    return "; ".join(f"{role} {', '.join(numbers)}" for role, numbers in roles.items())


def nodes() -> str:
    """Return how many nodes there are, in words."""
    number = sum(bool(node["Alive"]) for node in ray.nodes())
    return f"{number} node" + "s" * (number != 1)
