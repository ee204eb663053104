"""A reward that is served over HTTP."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from gymnasium import spaces

from guerdon.data import Batch
from guerdon.data.batch import flatten
from guerdon.parallel.serve import RewardClient, RewardServer
from guerdon.reward import RewardModel, Setting, make_reward
from guerdon.training.replay import load_reward
from tests.training.running import run

TOKEN = "a-long-token"
CALLS = []


def total(data):
    """Sum of the observation plus the action; notes how many rows come at once."""
    CALLS.append(len(data.act))
    if (data.act > 100).any():
        raise ValueError("no such action")
    return data.obs.sum(-1) + data.act


def transitions(rows, seed=0):
    generator = np.random.default_rng(seed)
    obs = generator.normal(size=(rows, 3)).astype(np.float32)
    return {"obs": obs, "act": generator.integers(4, size=rows)}


@pytest.fixture
def server():
    CALLS.clear()
    reward = make_reward({"type": "function", "target": total, "fields": ("obs", "act")})
    made = RewardServer(reward, TOKEN)
    thread = threading.Thread(target=made.serve)
    thread.start()
    yield made
    made.close()
    thread.join()


def post(server, body, kind="application/json", token=TOKEN, path="/score"):
    """Send a request; return status and answer."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
    request = urllib.request.Request(server.url + path, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_arrays_and_json_give_the_same_rewards(server):
    given = transitions(5)
    expected = given["obs"].sum(-1) + given["act"]
    found = RewardClient(server.url, TOKEN).score(given)
    assert found == pytest.approx(expected)
    text = json.dumps({name: each.tolist() for name, each in given.items()})
    status, answer = post(server, text.encode())
    assert status == 200
    assert answer["reward"] == pytest.approx(expected, rel=1e-5)


def test_requests_of_many_clients_are_scored_together_and_answered_apart(server):
    client = RewardClient(server.url, TOKEN)
    given = [transitions(1 + i % 3, seed=i) for i in range(60)]
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(client.score, given))
    for each, found in zip(given, answers, strict=True):
        assert found == pytest.approx(each["obs"].sum(-1) + each["act"])
    assert len(CALLS) < 60  # some were joined
    stats = client.stats()
    assert stats["requests"] == 60
    assert stats["rows"] == sum(len(each["act"]) for each in given)
    assert 0 < stats["p50_ms"] <= stats["p90_ms"] <= stats["p99_ms"]


def test_what_the_reward_reads(server):
    assert RewardClient(server.url, TOKEN).info() == {
        "fields": ["obs", "act"],
        "terms": ["function"],
    }


@pytest.mark.parametrize(
    ("body", "kind", "status", "reason"),
    [
        (b'{"act": [1]}', "application/json", 400, "the request has no 'obs'"),
        (b"[1, 2]", "application/json", 400, "has to be an object"),
        (b"{", "application/json", 400, "not valid JSON"),
        (b"[" * 100_000, "application/json", 400, "nested too deeply"),
        (b"x" * 100, "application/x-safetensors", 400, "Error"),
        (b"cos\nsystem\n.", "application/x-pickle", 400, "send application/json or"),
        (b'{"obs": [[1, 2, 3]], "act": [101]}', "application/json", 400, "no such action"),
        (b'{"obs": [[1, 2, 3]], "act": [1, 2]}', "application/json", 400, "Error"),
    ],
)
def test_bad_requests_are_refused_and_the_server_goes_on(server, body, kind, status, reason):
    found, answer = post(server, body, kind)
    assert (found, reason in answer["error"]) == (status, True), answer
    assert post(server, b'{"obs": [[1, 2, 3]], "act": [1]}') == (200, {"reward": [7.0]})


def test_an_answer_is_sent_at_once(server, monkeypatch):
    """In one packet, for which the client does not wait."""
    sent = []

    def noting(send):
        def noted(self, data, *flags):
            if self.getsockname()[1] == int(server.url.rpartition(":")[2]):
                delayed = not self.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                sent.append((bytes(data), delayed))
            return send(self, data, *flags)

        return noted

    for name in ("send", "sendall"):
        monkeypatch.setattr(socket.socket, name, noting(getattr(socket.socket, name)))
    requests = [
        (b'{"obs": [[1, 2, 3]], "act": [1]}', 200, b'{"reward": [7.0]}'),
        (b"[1]", 400, b'such as obs and act"}'),
    ]
    for body, status, answer in requests:
        sent.clear()
        assert post(server, body)[0] == status
        [(data, delayed)] = sent
        assert data.startswith(b"HTTP/1.1 %d" % status)
        assert data.endswith(answer)
        assert not delayed


CAMERA = spaces.Box(0, 255, (4, 4, 3), np.uint8)
PARTS = spaces.Dict({"camera": CAMERA, "arm": spaces.Box(-1, 1, (2,), np.float32)})
VECTOR = spaces.Box(-1, 1, (3,), np.float32)


class Sum(RewardModel):
    """The sum of the action, and the dtypes that it sees."""

    fields = ("obs", "act")

    def score(self, batch):
        SEEN.append([str(leaf.dtype) for _, leaf in flatten(Batch(obs=batch.obs, act=batch.act))])
        return batch.act.float().reshape(len(batch.act), -1).sum(1)


SEEN = []


@pytest.fixture
def served():
    """Serve a reward of a run with some spaces."""
    with ExitStack() as stack:

        def make(observation_space, action_space):
            model = Sum({}, Setting(observation_space, action_space))
            made = RewardServer(make_reward(model), TOKEN)
            thread = threading.Thread(target=made.serve)
            thread.start()
            stack.callback(thread.join)
            stack.callback(made.close)
            return made

        yield make


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"act": [0.5]}, "act has the value 0.5, but has to be Discrete(4)"),
        ({"act": [4]}, "is 4 in row 0, which is outside Discrete(4)"),
        ({"act": [[1]]}, "act has the shape (1,), but its space ()"),
        ({"act": {"a": [1]}}, "unknown field 'act.a': send obs, act, obs_next"),
        ({"act": [{"a": 1}]}, "has text or objects in its arrays: send numbers"),
        ({"act": [0, "a" * 10**6]}, "has text or objects in its arrays: send numbers"),
        ({"act": [None]}, "act is object array of shape (1,): send numbers"),
        ({"act": 1}, "act is one number: send a list, with one entry for each transition"),
        ({"terminated": [0.5]}, "terminated has the value 0.5, but has to be Discrete(2)"),
        ({"obs": {"a": [1]}}, "unknown field 'obs.a': send obs, act, obs_next"),
        ({"obs": [[0, 0]]}, "obs has the shape (2,), but its space (3,)"),
        ({"obs": [[0, 0, 0], [0]]}, "obs has lists of different lengths"),
        ({"obs": [["a", "b", "c"]]}, "send numbers"),
        ({"obs": [[0, 0, float("nan")]]}, "obs is nan at index (0, 2), not a finite number"),
        ({"obs_nxt": [[0, 0, 0]]}, "unknown field 'obs_nxt': send obs, act, obs_next"),
    ],
)
def test_requests_are_checked_against_the_spaces(request_, reason, served):
    server = served(VECTOR, spaces.Discrete(4))
    good = {"obs": [[0, 0, 0.5]], "act": [1]}
    status, answer = post(server, json.dumps({**good, **request_}).encode())
    assert (status, reason in answer["error"]) == (400, True), answer
    assert post(server, json.dumps(good).encode()) == (200, {"reward": [1.0]})


def test_parts_of_observations_are_checked_and_converted(served):
    server = served(PARTS, VECTOR)
    parts = {"camera": np.zeros((1, 4, 4, 3), int).tolist(), "arm": [[0, 1]]}
    good = {"obs": parts, "act": [[1, 2, 3]]}
    SEEN.clear()
    assert post(server, json.dumps(good).encode()) == (200, {"reward": [6.0]})
    assert SEEN == [["torch.float32", "torch.uint8", "torch.float32"]]
    for obs, reason in (
        ({"arm": parts["arm"]}, "the request has no 'obs.camera'"),
        (parts["arm"], "unknown field 'obs': send obs.arm, obs.camera, act"),
        ({**parts, "hand": [[0, 1]]}, "unknown field 'obs.hand'"),
        ({**parts, "arm": {"x": [0], "y": [1]}}, "unknown field 'obs.arm.x'"),
        (
            {**parts, "camera": np.full((1, 4, 4, 3), 256).tolist()},
            "obs.camera has the value 256, but has to be uint8",
        ),
    ):
        status, answer = post(server, json.dumps({**good, "obs": obs}).encode())
        assert (status, reason in answer["error"]) == (400, True), answer


def test_a_dtype_that_numpy_lacks_is_refused(server):
    leaf = {"dtype": "BF16", "shape": [1, 3], "data_offsets": [0, 6]}
    act = {"dtype": "I64", "shape": [1], "data_offsets": [6, 14]}
    header = json.dumps({"obs": leaf, "act": act}).encode()
    body = len(header).to_bytes(8, "little") + header + bytes(14)
    status, answer = post(server, body, "application/x-safetensors")
    assert (status, "arrays of 'BF16' are not read: send F32" in answer["error"]) == (400, True)


def test_the_body_of_another_method_is_not_the_next_request(server):
    smuggled = f"GET /stats HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    request = smuggled.replace("/stats", "/info").replace(
        "\r\n\r\n", f"\r\nContent-Length: {len(smuggled)}\r\n\r\n{smuggled}"
    )
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 30) as client:
        client.sendall(request.encode())
        answers = b"".join(iter(lambda: client.recv(65536), b""))
    assert answers.count(b"HTTP/1.1 ") == 1


def test_requests_need_the_token(server):
    assert post(server, b"{}", token="another")[0] == 401
    with pytest.raises(ValueError, match="send the server's token"):
        RewardClient(server.url, "another").stats()
    with pytest.raises(ValueError, match="8 or more"):
        RewardServer(make_reward({"type": "constant"}), "short")


def test_other_paths_are_refused(server):
    assert post(server, b"{}", path="/other")[0] == 404


def test_the_command_serves_the_reward_of_a_run(tmp_path):
    terms = {"gail": {"expert_data_path": "zoo:cartpole"}}
    run("ppo_normalized", tmp_path / "run", reward={"terms": terms})
    environment = {**os.environ, "GUERDON_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "guerdon", "reward", "serve", str(tmp_path / "run")],
        stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    line = process.stdout.readline()
    url = re.search(r"serving gail at (http://127\.0\.0\.1:\d+), token that of GUERDON", line)[1]
    generator = np.random.default_rng(0)
    obs = generator.normal(size=(6, 4)).astype(np.float32)
    given = {"obs": obs, "act": np.array([0, 1] * 3), "obs_next": obs + 0.1}
    found = RewardClient(url, TOKEN).score(given)
    flags = {name: np.zeros(6, bool) for name in ("terminated", "truncated")}
    batch = Batch(rew=np.zeros(6, np.float32), **flags, **given)
    assert found == pytest.approx(load_reward(tmp_path / "run").score(batch), rel=1e-5)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert not list((tmp_path / "run").glob("core*"))
