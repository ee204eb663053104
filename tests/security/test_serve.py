"""Attacks on a reward that is served over HTTP."""

import json
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from safetensors.numpy import save

from guerdon.parallel import serve
from guerdon.parallel.serve import RewardClient, RewardServer
from guerdon.reward import make_reward

TOKEN = "a-long-token"
GOOD = b'{"obs": [[1, 2, 3]], "act": [1]}'


def total(data):
    """Sum of the observation plus the action."""
    if (data.act == 101).any():
        raise ValueError(f"cannot read {__file__}")
    if (data.act == 102).any():
        open("/nowhere/at/all")  # noqa: SIM115, PTH123
    if (data.act == 103).any():
        raise ValueError("no such action")
    return (data.obs @ np.ones((3, 1), np.float32))[:, 0] + data.act


@pytest.fixture(scope="module")
def server():
    reward = make_reward({"type": "function", "target": total, "fields": ("obs", "act")})
    made = RewardServer(reward, TOKEN)
    thread = threading.Thread(target=made.serve)
    thread.start()
    yield made
    made.close()
    thread.join()


def address(server):
    return "127.0.0.1", int(server.url.rpartition(":")[2])


def head(line="POST /score HTTP/1.1", *, leave=(), **headers):
    given = {
        "Host": "localhost",
        "Authorization": f"Bearer {TOKEN}",
        "Content-Type": "application/json",
    }
    given |= {name.replace("_", "-"): str(value) for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in given.items() if name not in leave]
    return "\r\n".join([line, *lines, "", ""]).encode("latin-1")


def ask(server, request, end=False):
    """Send bytes; return status and body of the answer, None and nothing if there is none."""
    with socket.create_connection(address(server), timeout=30) as client:
        client.sendall(request)
        if end:
            client.shutdown(socket.SHUT_WR)
        return answer_of(client)


def answer_of(client):
    with client.makefile("rb") as file:
        status = file.readline()
        if not status.startswith(b"HTTP/"):  # of a request that names no version
            return None, status + file.read()
        headers = dict(iter(lambda: tuple(file.readline().decode().split(": ", 1)), ("\r\n",)))
        assert headers["Server"].strip() == "guerdon"
        return int(status.split()[1]), file.read(int(headers.get("Content-Length", 0)))


def post(server, body, **headers):
    return ask(server, head(Content_Length=len(body), **headers) + body)


def works(server):
    return json.loads(post(server, GOOD)[1]) == {"reward": [7.0]}


def refused(server, answer, *status):
    """The reason of an answer, which says nothing of the server; the server goes on."""
    code, body = answer
    assert code in status, answer
    assert not re.search(rb"Traceback|\.py|nowhere", body)
    assert works(server)
    return body.decode()


@pytest.mark.parametrize(
    "headers",
    [
        {"leave": ["Authorization"]},
        {"Authorization": ""},
        {"Authorization": "Bearer "},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer \xff\xfe"},
        {"Authorization": "Bearer " + "x" * 60_000},
    ],
)
@pytest.mark.parametrize("line", ["POST /score", "GET /info", "GET /stats", "GET /other"])
def test_nothing_is_told_without_the_token(headers, line, server):
    answer = ask(server, head(f"{line} HTTP/1.1", Content_Length=0, **headers))
    assert "send the server's token" in refused(server, answer, 401)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "",
     "localhost@evil.example", "192.168.0.1", "127.0.0.1:80:80"],
)  # fmt: skip
def test_names_that_lead_to_this_machine_are_not_served(host, server):
    answer = ask(server, head("GET /info HTTP/1.1", Host=host))
    assert "send 'Host: localhost'" in refused(server, answer, 403)
    answer = ask(server, head("GET /info HTTP/1.1", leave=["Host"]))
    assert "send 'Host: localhost'" in refused(server, answer, 403)
    assert ask(server, head("GET /info HTTP/1.1", Host="127.0.0.1:99"))[0] == 200


def test_it_listens_at_loopback_by_default(server):
    assert server.is_local
    assert server.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    "size",
    ["", "-1", "1e3", "0x10", "²", "٣", "9" * 5_000, 1 << 22 | 1, "1, 1", "+5", "5\r\nX: 1, 2"],
)
def test_wrong_lengths_are_refused(size, server):
    headers = f"Content-Length: {size}\r\n\r\n".encode()
    answer = ask(server, head()[:-2] + headers + GOOD)
    refused(server, answer, 413, 400)


def test_lengths_that_lie_are_refused(server):
    refused(server, ask(server, head(Content_Length=10**6) + GOOD, end=True), 400)
    refused(server, ask(server, head(Content_Length=len(GOOD) - 3) + GOOD), 400)
    twice = head(Content_Length=len(GOOD))[:-2] + b"Content-Length: 3\r\n\r\n"
    refused(server, ask(server, twice + GOOD), 413)
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD), GOOD)
    for more in ({}, {"Content_Length": 4}):
        answer = ask(server, head(Transfer_Encoding="chunked", **more) + chunks)
        assert "no chunks" in refused(server, answer, 501)


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\r\n" * 1_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /info HTTP/9.9\r\n\r\n",
        b"GET /info HTTP/1.1\r\n" + b"".join(b"X%d: 1\r\n" % i for i in range(10_000)) + b"\r\n",
        b"GET /info HTTP/1.1\r\nX: " + b"x" * 10**6 + b"\r\n\r\n",
        b"GET /info HTTP/1.1\r\nno header\r\n\r\n",
        b"CONNECT evil.example:80 HTTP/1.1\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nOrigin: http://evil.example\r\n\r\n",
    ],
)
def test_what_is_no_request_changes_nothing(request_, server):
    try:
        code, body = ask(server, request_, end=True)
    except OSError:  # closed before everything was sent
        code, body = None, b""
    refused(server, (code or 400, body), 400, 401, 403, 414, 431, 501, 505)


@pytest.mark.parametrize(
    "path",
    ["/", "/score/", "/score?x", "/../score", "/..%2f..%2fetc%2fpasswd", "/%73core", "*",
     "http://evil.example/score", "/score\x00", "/\xff"],
)  # fmt: skip
def test_other_paths_are_not_there(path, server):
    for method in ("GET", "POST"):
        code, _ = ask(server, head(f"{method} {path} HTTP/1.1", Content_Length=0))
        assert code == 404
    assert works(server)


def nested(depth):
    return b'{"obs": ' + b'{"a":' * depth + b"1" + b"}" * depth + b', "act": [1]}'


BODIES = {
    "nested objects": nested(90),
    "deep objects": nested(100_000),
    "deep lists": b'{"obs": ' + b"[" * 10**6,
    "no numbers": b'{"obs": [["a", "b", "c"]], "act": [1]}',
    "nothing": b'{"obs": null, "act": [1]}',
    "ragged": b'{"obs": [[1, 2, 3], [1]], "act": [1, 2]}',
    "large": b'{"obs": [[1, 2, 1%s]], "act": [1]}' % (b"0" * 400),
    "infinite": b'{"obs": [[1, 2, 1e400]], "act": [1]}',
    "too large for a float": b'{"obs": [[1, 2, 1e300]], "act": [1]}',
    "nan": b'{"obs": [[1, 2, NaN]], "act": [1]}',
    "the sum is infinite": b'{"obs": [[3e38, 3e38, 3e38]], "act": [1]}',
    "one number": b'{"obs": 1, "act": 1}',
    "empty": b'{"obs": [], "act": []}',
    "empty object": b'{"obs": {}, "act": [1]}',
    "other lengths": b'{"obs": [[1, 2, 3]], "act": [1, 1]}',
    "another width": b'{"obs": [[1, 2, 3, 4]], "act": [1]}',
    "another depth": b'{"obs": [[[1, 2, 3]]], "act": [1]}',
    "attributes": b'{"obs": {"__class__": [1]}, "act": {"__init__": [1]}}',
    "many values": b'{"obs": [' + b"[],[]," * 10**5 + b'[]], "act": [1]}',
    "path": b'{"obs": [[1, 2, 3]], "act": [101]}',
    "file": b'{"obs": [[1, 2, 3]], "act": [102]}',
}


@pytest.mark.parametrize("name", BODIES)
def test_json_that_is_no_batch_is_refused(name, server):
    refused(server, post(server, BODIES[name]), 400)


def arrays(**given):
    return save({name: np.ascontiguousarray(each) for name, each in given.items()})


def header(shape, stop=0, dtype="F32"):
    entries = {
        "obs": {"dtype": dtype, "shape": shape, "data_offsets": [0, stop]},
        "act": {"dtype": "I64", "shape": shape[:1], "data_offsets": [stop, stop + 8]},
    }
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


OBS, ACT = np.ones((1, 3), np.float32), np.ones(1, np.int64)
WHOLE = arrays(obs=OBS, act=ACT)
ARRAYS = {
    "nothing": b"",
    "truncated": WHOLE[:-3],
    "no header": WHOLE[:8],
    "a long header": (1 << 62).to_bytes(8, "little") + WHOLE[8:],
    "more": WHOLE + b"more",
    "nan": arrays(obs=OBS * np.nan, act=ACT),
    "complex": arrays(obs=OBS.astype(np.complex64), act=ACT),
    "half": arrays(obs=OBS.astype(np.float16) * np.inf, act=ACT),
    "bfloat16": header([1, 3], 6, "BF16") + bytes(14),
    "unknown": header([1, 3], 12, "O") + bytes(20),
    "many rows of nothing": arrays(
        obs=np.zeros((10**9, 0), np.float32), act=np.zeros((10**9, 0), np.int64)
    ),
    "many rows": arrays(obs=np.zeros((1 << 21, 1), np.int8), act=np.zeros((1 << 21), np.int8)),
    "negative": header([-1, 3], 12) + bytes(20),
    "huge": header([1 << 40, 1 << 40], 12) + bytes(20),
    "names": arrays(**{"obs": OBS, "obs.a": OBS, "act": ACT}),
    "dots": arrays(**{"obs" + ".a" * 3_000: OBS, "act": ACT}),
    "no names": arrays(**{"": OBS, "..": ACT}),
    "other lengths": arrays(obs=OBS, act=np.ones(2, np.int64)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_are_no_batch_are_refused(name, server):
    answer = post(server, ARRAYS[name], Content_Type="application/x-safetensors")
    refused(server, answer, 400)


def test_a_bad_request_does_not_fail_those_that_are_scored_with_it(server):
    bad = GOOD.replace(b"[1]}", b"[103]}")
    answers = {GOOD: [], bad: []}

    def send(body):
        answers[body].append(post(server, body))

    threads = [threading.Thread(target=send, args=[body]) for body in (GOOD, bad) * 20]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {code for code, _ in answers[GOOD]} == {200}
    assert {code for code, _ in answers[bad]} == {400}
    assert b"no such action" in answers[bad][0][1]


@pytest.mark.parametrize("field", ["mask", "annotations", "info", "next_obs", "__class__", ""])
def test_unknown_fields_are_refused(field, server):
    body = json.dumps({"obs": [[1, 2, 3]], "act": [1], field: [0]}).encode()
    reason = refused(server, post(server, body), 400)
    assert f"unknown field '{field}': send obs, act, obs_next" in reason
    body = arrays(obs=OBS, act=ACT, **{field: ACT})
    answer = post(server, body, Content_Type="application/x-safetensors")
    assert f"unknown field '{field}'" in refused(server, answer, 400)


@pytest.mark.parametrize("inside", [False, True])
def test_many_fields_are_refused_before_they_are_converted(inside, server, monkeypatch):
    def convert(*_):
        raise AssertionError

    monkeypatch.setattr(serve, "_numbers", convert)
    monkeypatch.setattr(serve, "load_arrays", convert)
    names = [str(number) for number in range(50_000)]
    fields = {name: [1] for name in names}
    text = json.dumps({"act": [1], **({"obs": fields} if inside else fields)}).encode()
    named = {f"obs.{name}" if inside else name: ACT for name in names}
    for answer in (
        post(server, text),
        post(server, arrays(act=ACT, **named), Content_Type="application/x-safetensors"),
    ):
        assert (answer[0], b"send at most 1,000" in answer[1]) == (400, True), answer


def test_a_client_that_waits_for_permission_gets_it(server):
    request = head(Content_Length=len(GOOD), Expect="100-continue")
    with socket.create_connection(address(server), timeout=30) as client:
        client.sendall(request)
        assert client.recv(1_000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(GOOD)
        assert json.loads(answer_of(client)[1]) == {"reward": [7.0]}


@pytest.mark.parametrize("begun", [b"", b"POST /sc", head(Content_Length=100)])
def test_clients_that_do_not_finish_do_not_keep_others_out(begun, server, monkeypatch):
    """The one that has waited longest is closed, not one that is answered."""
    monkeypatch.setattr(serve, "_CONNECTIONS", 20)
    clients = []
    try:
        for _ in range(60):
            clients.append(socket.create_connection(address(server), timeout=30))
            clients[-1].sendall(begun)
        for _ in range(30):
            assert works(server)
        first = clients[0].recv(100)
        assert first == b"" or first.startswith(b"HTTP/1.1 400")
        deadline = time.monotonic() + 30
        while threading.active_count() > 40 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threading.active_count() <= 40
    finally:
        for each in clients:
            each.close()
    assert works(server)


def test_a_connection_that_is_used_is_not_the_first_to_be_closed(server, monkeypatch):
    monkeypatch.setattr(serve, "_CONNECTIONS", 5)
    others = []
    with socket.create_connection(address(server), timeout=30) as client:
        for _ in range(20):
            others.append(socket.create_connection(address(server), timeout=30))
            client.sendall(head(Content_Length=len(GOOD)) + GOOD)
            assert answer_of(client)[0] == 200
    for each in others:
        each.close()


def test_a_client_sends_its_token_to_no_other_server(server):
    """And names what is no answer of a reward server."""
    told = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            told.append(self.headers["Authorization"])
            self.send_response(302)
            self.send_header("Location", f"{server.url}/info")
            self.end_headers()

    other = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=other.handle_request)
    thread.start()
    with pytest.raises(ValueError, match="refuses the request: Found"):
        RewardClient(f"http://127.0.0.1:{other.server_port}", TOKEN).info()
    thread.join()
    other.server_close()
    assert told == [f"Bearer {TOKEN}"]
