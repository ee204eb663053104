"""Latency of a served reward at 1, 8 and 64 keep-alive clients, of two checkouts of guerdon.

`python benchmarks/serve.py OLD NEW` starts a server of each checkout in turn, round by round, sends
it single transitions as JSON, and writes percentiles of the latency to `results/serve.json`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

_RESULTS = Path(__file__).parent / "results" / "serve.json"
_TOKEN = "token-of-the-benchmark"
_CLIENTS = (1, 8, 64)
_WARM_UP = 5  # requests of a client that are not counted
_TRANSITION = {"obs": [[0.0] * 4], "act": [1], "obs_next": [[0.1] * 4]}


def main() -> None:
    """Measure both checkouts, or serve a reward."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", type=Path, nargs="*", help="the old one and the new one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=320, help="of all clients, in a round")
    parser.add_argument("--out", type=Path, default=_RESULTS)
    options = parser.parse_args()
    if not options.checkouts:
        serve()
        return
    old, new = options.checkouts
    seconds = {(name, clients): [] for name in ("old", "new") for clients in _CLIENTS}
    for number in range(options.rounds):
        for name, checkout in [("old", old), ("new", new)][:: 1 if number % 2 else -1]:
            for clients in _CLIENTS:
                seconds[name, clients] += measured(checkout, clients, options.requests)
    found = {
        str(clients): {name: percentiles(seconds[name, clients]) for name in ("old", "new")}
        for clients in _CLIENTS
    }
    about = {
        "commits": {"old": commit(old), "new": commit(new)},
        "requests": options.rounds * options.requests,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }
    options.out.write_text(json.dumps({**about, "clients": found}, indent=2) + "\n")
    print("| clients | p50 before | p50 now | p99 before | p99 now |\n|---:|---:|---:|---:|---:|")
    for clients, row in found.items():
        cells = [row[name][key] for key in ("p50_ms", "p99_ms") for name in ("old", "new")]
        print(f"| {clients} | {' | '.join(f'{cell:.1f}' for cell in cells)} |")


def serve() -> None:
    """Serve gail's reward of CartPole until the standard input ends."""
    import threading

    from guerdon.data import load_demonstrations
    from guerdon.parallel.serve import RewardServer
    from guerdon.reward import Setting, make_reward

    demonstrations = load_demonstrations("zoo:cartpole")
    server = RewardServer(make_reward({"type": "gail"}, Setting.of(demonstrations)), _TOKEN)
    threading.Thread(target=server.serve, daemon=True).start()
    print(server.url, flush=True)
    sys.stdin.read()
    server.close()


def measured(checkout: Path, clients: int, requests: int) -> list[float]:
    """Return the seconds of all requests of some clients to a new server."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(Path(__file__).resolve())]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as server:
        address = server.stdout.readline().strip().removeprefix("http://")
        with ThreadPoolExecutor(clients) as pool:
            found = pool.map(lambda _: client(address, requests // clients), range(clients))
            seconds = [each for times in found for each in times]
        server.stdin.close()
    return seconds


def client(address: str, requests: int) -> list[float]:
    """Send requests over one connection, and return the seconds of each."""
    connection, seconds = http.client.HTTPConnection(address), []
    headers = {"Authorization": f"Bearer {_TOKEN}", "Content-Type": "application/json"}
    body = json.dumps(_TRANSITION)
    for number in range(_WARM_UP + requests):
        start = time.perf_counter()
        connection.request("POST", "/score", body, headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the server answers {answer.status}")
        if number >= _WARM_UP:
            seconds.append(time.perf_counter() - start)
    connection.close()
    return seconds


def commit(checkout: Path) -> str:
    """Return the commit of a checkout."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return the median and the 99th percentile, in milliseconds."""
    p50, p99 = np.percentile(seconds, (50, 99)) * 1000
    return {"p50_ms": round(float(p50), 2), "p99_ms": round(float(p99), 2)}


if __name__ == "__main__":
    main()
