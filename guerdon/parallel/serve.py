"""Serving a learned reward over HTTP, and the client: `RewardServer`, `RewardClient`.

A request has transitions, as JSON or as safetensors, and the answer their rewards. Rewards of
single transitions are computed in batches over requests; those of episodes one request at a time.
"""

import hmac
import json
import logging
import queue
import re
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from guerdon.data import Batch
from guerdon.data.batch import flatten, unflatten
from guerdon.data.leaves import describe
from guerdon.data.spaces import check_finite, leaf_names
from guerdon.limits import DAMAGE, parse_json
from guerdon.reward import Reward

log = logging.getLogger(__name__)
JSON, ARRAYS = "application/json", "application/x-safetensors"
_MOST_BYTES = {ARRAYS: 1 << 28, JSON: 1 << 22}  # of a request; JSON takes far more memory
_MOST_ROWS = 1 << 20  # of a request
_MOST_ARRAYS, _MOST_PARTS = 1_000, 8  # of a request, and nested parts of an observation
_CONNECTIONS = 256  # beyond them, the one that has waited longest for its client is closed
_LOCAL = re.compile(r"(localhost|127(\.\d+){3}|\[::1\])(:\d+)?")
_REPORT = 1_000  # requests between lines in the log
_SOCKET_SECONDS = 30.0  # for the rest of a request that has begun
FIELDS = ("obs", "act", "obs_next", "rew", "terminated", "truncated")


class _Request(NamedTuple):
    batch: Batch
    answer: "Future[np.ndarray]"


class Scorer:
    """Computes rewards in one thread, in batches over requests.

    Args:
        reward: The reward.
        max_batch: Transitions that are scored at once, unless one request has more.
        wait_seconds: Time to wait for further requests.
    """

    def __init__(self, reward: Reward, max_batch: int = 1024, wait_seconds: float = 0.002) -> None:
        self._reward, self._max_batch, self._wait = reward, max_batch, wait_seconds
        # Rewards with a memory read the transitions of a request as those of an episode.
        self._joins = not (reward.history or reward.new_memory(1))
        self._requests: queue.Queue[_Request | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def score(self, batch: Batch) -> np.ndarray:
        """Return the rewards of transitions [T, ...]; called from any thread."""
        request = _Request(batch, Future())
        self._requests.put(request)
        return request.answer.result()

    def close(self) -> None:
        """End the thread."""
        self._requests.put(None)
        self._thread.join()

    def _run(self) -> None:
        left: _Request | None = None
        while (first := left or self._requests.get()) is not None:
            chosen, left, closes = [first], None, False
            end = time.monotonic() + self._wait
            while self._joins and sum(len(each.batch) for each in chosen) < self._max_batch:
                try:
                    more = self._requests.get(timeout=max(end - time.monotonic(), 0))
                except queue.Empty:
                    break
                closes = more is None
                if more is None or _layout(more.batch) != _layout(first.batch):
                    left = more
                    break
                chosen.append(more)
            self._answer(chosen)
            if closes:
                return

    def _answer(self, requests: list[_Request]) -> None:
        try:
            rewards = self._reward.score(Batch.cat([each.batch for each in requests]))
            ends = np.cumsum([len(each.batch) for each in requests])[:-1]
            for request, part in zip(requests, np.split(rewards, ends), strict=True):
                request.answer.set_result(part)
        except Exception as error:  # of a request: the server goes on
            if len(requests) == 1:
                requests[0].answer.set_exception(error)
                return
            for request in requests:  # the others are not refused with it
                self._answer([request])


def _layout(batch: Batch) -> Any:
    return [(path, leaf.dtype, leaf.shape[1:]) for path, leaf in flatten(batch)]


def _parsed(body: bytes, kind: str, reward: Reward, fields: tuple[str, ...]) -> Batch:
    """Return the transitions of a request as a batch.

    Args:
        body: JSON ``{"obs": [...], "act": [...], ...}``, nested for Dict observations; or
            safetensors with dotted names.
        kind: Content type.
        reward: The reward.
        fields: Fields that it reads.
    """
    given = parse_json(_header(body) if kind == ARRAYS else body, "the request")
    if not isinstance(given, dict):
        raise ValueError("the request has to be an object of fields, such as obs and act")
    if kind == ARRAYS:
        _check_names(given.keys() - {"__metadata__"}, reward.spaces, fields)
        try:
            named: Mapping[str, Any] = load_arrays(body)
        except KeyError as error:
            raise ValueError(f"arrays of {error} are not read: send F32") from None
    else:
        paths = dict(flatten(given))
        named = {".".join(path): value for path, value in paths.items()}
        _check_names(named, reward.spaces, fields)
        keys = {path[:end] for path in paths for end in range(1, len(path) + 1)}
        if body.count(b'"') > 2 * len(keys):  # NumPy would make all of them as long as the longest
            raise ValueError("the request has text or objects in its arrays: send numbers")
    batch = unflatten({tuple(name.split(".")): _numbers(name, named[name]) for name in named})
    rows = len(batch)
    if not 0 < rows <= _MOST_ROWS:
        raise ValueError(f"the request has {rows:,} transitions: send 1 to {_MOST_ROWS:,}")
    return reward.checked(Batch({"rew": np.zeros(rows, np.float32), **dict(batch.items())}))


def _header(body: bytes) -> bytes:
    """Return the header of safetensors, which is JSON."""
    size = int.from_bytes(body[:8], "little")
    if size > _MOST_BYTES[JSON]:
        raise ValueError("the header of the request is too large")
    return body[8 : 8 + size]


def _check_names(names: Collection[str], spaces: tuple[Any, Any], fields: tuple[str, ...]) -> None:
    """Check the names of a request's arrays against the spaces, before anything is converted.

    Args:
        names: Dotted names.
        spaces: Observation and action space; None where unknown, which allows any parts.
        fields: Fields that the reward reads.
    """
    by_field = {"obs": spaces[0], "act": spaces[1], "obs_next": spaces[0]}
    leaves = [leaf for field in FIELDS for leaf in leaf_names(by_field.get(field), field)]
    free = tuple(f"{field}." for field, space in by_field.items() if space is None)
    if len(names) > _MOST_ARRAYS:
        raise ValueError(f"the request has {len(names):,} arrays: send at most {_MOST_ARRAYS:,}")
    for name in names:
        if name not in leaves and not (name.startswith(free) and name.count(".") <= _MOST_PARTS):
            raise ValueError(f"unknown field {name[:100]!r}: send {', '.join(leaves)}")
    for leaf in leaves:
        present = leaf in names or any(name.startswith(f"{leaf}.") for name in names)
        if leaf.partition(".")[0] in fields and leaf != "rew" and not present:
            raise ValueError(f"the request has no {leaf!r}: the reward reads {', '.join(fields)}")


def _numbers(name: str, value: Any) -> np.ndarray:
    """Return an array of finite numbers, in single precision, of an array or of lists."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name} has lists of different lengths") from None
    if array.dtype.kind not in "biuf" or not array.size:
        raise ValueError(f"{name} is {describe(array)}: send numbers")
    if not array.ndim:
        raise ValueError(f"{name} is one number: send a list, with one entry for each transition")
    if array.dtype == np.float64:
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
    check_finite(array, name)
    return array


class RewardServer:
    """Serves a reward: ``POST /score``, ``GET /info`` and ``GET /stats``, with a token.

    Args:
        reward: The reward.
        token: What requests have to send as ``Authorization: Bearer TOKEN``.
        host: Address to listen at.
        port: Port; 0 chooses a free one.
    """

    def __init__(self, reward: Reward, token: str, host: str = "127.0.0.1", port: int = 0) -> None:
        if not token.isascii() or not token.isprintable() or len(token) < 8:
            raise ValueError("a token needs 8 or more printable ASCII characters")
        self.token, self.reward, self.scorer = token, reward, Scorer(reward)
        self.fields = tuple(each for each in FIELDS if each in {*reward.fields, *reward.collects})
        self.terms = list(reward.terms)
        self._lock = threading.Lock()
        self._seconds: deque[float] = deque(maxlen=10_000)
        self._requests = self._rows = 0
        self._http = _HTTPServer((host, port), _Handler)
        self._http.owner = self
        name, number = self._http.server_address[:2]
        self.is_local, self.url = str(name).startswith("127."), f"http://{name!s}:{number}"

    def serve(self) -> None:
        """Answer requests until `close` is called in another thread."""
        self._http.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """Stop serving."""
        self._http.shutdown()
        self._http.server_close()
        self.scorer.close()

    def count(self, rows: int, seconds: float) -> None:
        """Count an answered request."""
        with self._lock:
            self._requests += 1
            self._rows += rows
            self._seconds.append(seconds)
            report = self._requests % _REPORT == 0
        if report:
            log.info("%s", json.dumps(self.stats()))

    def stats(self) -> dict[str, float]:
        """Return the number of requests and rows, and latencies in milliseconds."""
        with self._lock:
            found: dict[str, float] = {"requests": self._requests, "rows": self._rows}
            seconds = list(self._seconds)
        if seconds:
            at = np.percentile(seconds, (50, 90, 99)) * 1000
            names = ("p50_ms", "p90_ms", "p99_ms")
            found |= {name: round(float(each), 3) for name, each in zip(names, at, strict=True)}
        return found


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # clients that may connect at once
    owner: RewardServer

    def __init__(self, *args: Any) -> None:
        self._waiting: dict[socket.socket, None] = {}  # for their clients, the longest first
        self._lock = threading.Lock()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.waits(request)
        super().process_request(request, client_address)

    def waits(self, request: socket.socket) -> None:
        """Note that a connection waits for its client; close another one if there are too many."""
        with self._lock:
            self._waiting[request] = None
            if len(self._waiting) > _CONNECTIONS:
                first = next(iter(self._waiting))
                del self._waiting[first]
                with suppress(OSError):
                    first.shutdown(socket.SHUT_RDWR)  # its thread ends

    def answers(self, request: Any) -> None:
        """Note that a connection has a whole request, or has ended."""
        with self._lock:
            self._waiting.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        self.answers(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        if not isinstance(error := sys.exception(), OSError):  # of a client that has gone
            log.error("a connection failed", exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open
    server_version, sys_version = "guerdon", ""
    timeout = _SOCKET_SECONDS
    disable_nagle_algorithm = True  # a second packet would wait for the client's acknowledgement
    wbufsize = -1  # headers and body are sent together
    server: _HTTPServer

    def do_GET(self) -> None:
        owner = self.server.owner
        if not self._is_allowed():
            return
        if "Content-Length" in self.headers:  # a body that would be read as the next request
            self.close_connection = True
        if self.path == "/info":
            self._send_json({"fields": owner.fields, "terms": owner.terms})
        elif self.path == "/stats":
            self._send_json(owner.stats())
        else:
            self._refuse(404, f"there is no {self.path}")

    def do_POST(self) -> None:
        if not self._is_allowed():
            return
        owner, kind = self.server.owner, self.headers.get_content_type()
        sizes, most = self.headers.get_all("Content-Length", []), _MOST_BYTES.get(kind, 0)
        if self.path != "/score":
            self._refuse(404, f"there is no {self.path}")
            return
        if not most:
            self._refuse(400, f"the content type is {kind!r}: send {JSON} or {ARRAYS}")
            return
        if len(sizes) != 1 or not re.fullmatch("[0-9]{1,9}", sizes[0]) or int(sizes[0]) > most:
            self._refuse(413, f"send a Content-Length, of at most {most >> 20} MiB for {kind}")
            return
        start, body, batch = time.perf_counter(), self.rfile.read(int(sizes[0])), None
        self.server.answers(self.connection)
        try:
            if len(body) < int(sizes[0]):
                raise ValueError("the request ends before its Content-Length")
            batch = _parsed(body, kind, owner.reward, owner.fields)
            rewards = owner.scorer.score(batch)
            if not np.isfinite(rewards).all():
                raise ValueError("the reward of these transitions is not finite")
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            # The reward's own errors may name files.
            if batch is not None and (not isinstance(error, DAMAGE) or re.search(r"[/\\]", reason)):
                log.exception("a request failed")
                reason = "the reward cannot be computed: its error is in the log of the server"
            self._refuse(400, reason)
            return
        owner.count(len(batch), time.perf_counter() - start)
        if kind == ARRAYS:
            self._send(200, ARRAYS, save_arrays({"reward": np.ascontiguousarray(rewards)}))
        else:
            self._send_json({"reward": rewards.tolist()})
        self.server.waits(self.connection)

    def handle_expect_100(self) -> bool:
        """Tell the client to send the body."""
        answered = super().handle_expect_100()
        self.wfile.flush()
        return answered

    def _is_allowed(self) -> bool:
        given, token = self.headers.get("Authorization", ""), self.server.owner.token
        hosts = self.headers.get_all("Host", [])
        # A page in a browser, whose name was given this address, sends its name.
        if self.server.owner.is_local and not (len(hosts) == 1 and _LOCAL.fullmatch(hosts[0])):
            self._refuse(403, "send 'Host: localhost' or the address: others are not served")
        elif not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            self._refuse(401, "send the server's token as 'Authorization: Bearer TOKEN'")
        elif "Transfer-Encoding" in self.headers:
            self._refuse(501, "send a Content-Length, and no chunks")
        else:
            return True
        return False

    def _refuse(self, status: int, reason: str) -> None:
        self.close_connection = True  # the rest of the request is not read
        self._send(status, JSON, json.dumps({"error": reason}).encode())

    def _send_json(self, content: Any) -> None:
        self._send(200, JSON, json.dumps(content).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        log.debug(format, *args)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Refuse: the token is for one server."""


class RewardClient:
    """Client of a `RewardServer`.

    Args:
        url: Where it is: ``http://127.0.0.1:8000``.
        token: Its token.
        timeout: Seconds to wait for an answer.
    """

    def __init__(self, url: str, token: str, timeout: float = 60.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"the URL of a reward server starts with http://, not {url!r}")
        self._url, self._token, self._timeout = url.rstrip("/"), token, timeout
        self._open = urllib.request.build_opener(_NoRedirect).open

    def score(self, transitions: Mapping[str, Any] | None = None, **fields: Any) -> np.ndarray:
        """Return the rewards of transitions [T, ...].

        Args:
            transitions: Fields by name, such as ``obs`` and ``act``; dictionaries for Dict
                observations.
            **fields: The same.
        """
        batch = Batch({**(transitions or {}), **fields})
        arrays = {".".join(path): np.ascontiguousarray(each) for path, each in flatten(batch)}
        answer = self._request("/score", save_arrays(arrays))
        return np.array(load_arrays(answer)["reward"])

    def info(self) -> dict[str, Any]:
        """Return the fields that the reward reads, and the names of its terms."""
        return dict(json.loads(self._request("/info")))

    def stats(self) -> dict[str, float]:
        """See `RewardServer.stats`."""
        return dict(json.loads(self._request("/stats")))

    def _request(self, path: str, body: bytes | None = None) -> bytes:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": ARRAYS}
        request = urllib.request.Request(self._url + path, body, headers)
        try:
            with self._open(request, timeout=self._timeout) as answer:
                found: bytes = answer.read()
        except urllib.error.HTTPError as error:
            reason = error.reason
            with suppress(ValueError, TypeError, LookupError):  # it is another server
                reason = json.loads(error.read())["error"]
            raise ValueError(f"{self._url} refuses the request: {reason}") from error
        return found
