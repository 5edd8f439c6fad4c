"""`tidegate metrics`: what it tells is what the forwarders say, a real Prometheus takes it with our alert rules,
and every query of the dashboard and of the page of documents has an answer. Whoever asks slowly, wrongly or often
is bounded."""
import json
import os
import re
import shutil
import signal
import socket
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from conftest import REPO, TIDEGATE, alive, free_port, run, stop, tail, until

ALERTS, DASHBOARD = REPO / "packaging/prometheus/alerts.yml", REPO / "packaging/grafana/tidegate.json"
PAGE = REPO / "docs/metrics.md"


def get(port, path, timeout=30):
    """Status and text of a page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def number(text, name, **labels):
    """The one number of that name with these labels among its own."""
    found = []
    for line in text.splitlines():
        match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        if match and match[1] == name:
            own = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or ""))
            if labels.items() <= own.items():
                found.append(float(match[3]))
    assert len(found) == 1, f"{name} {labels}: {found}"
    return found[0]


def kill_forwarder(up, index):
    pid = up.pid(index)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), f"forwarder {index} does not end")


class Exporter:
    """`tidegate metrics` beside forwarders."""

    def __init__(self, work, *target):
        self.port, self.log = free_port(), work / "metrics.log"
        words = (TIDEGATE, "metrics", "--listen", f"127.0.0.1:{self.port}", *target)
        self.process = work.start(*words, log=self.log)
        until(lambda: "serving http" in self.log.read_text(), lambda: tail(self.log))

    def metrics(self):
        status, text = get(self.port, "/metrics")
        assert status == 200 and text.endswith("# EOF\n"), text[-200:]
        return text


@pytest.fixture
def exporter(forwarders):
    with forwarders(2) as up:
        (up.mount / "file").write_bytes(bytes(100_000))
        assert (up.mount / "file").read_bytes() == bytes(100_000)
        exporter = Exporter(up, "--state-dir", up.state)
        exporter.up = up
        yield exporter
        stop(exporter.process)


def test_it_tells_what_the_forwarders_say(exporter):
    text = exporter.metrics()
    states = json.loads(exporter.up.tidegate("stat", "--json").stdout)
    for state in states:
        of = {"forwarder": str(state["forwarder"])}
        assert number(text, "tidegate_up", **of) == 1
        assert number(text, "tidegate_seats", state="serving", **of) == 1
        for direction in "read", "write":
            moved = number(text, "tidegate_data_bytes_total", direction=direction, **of)
            assert moved == state["bytes"][direction], direction
        assert number(text, "tidegate_pool_max_bytes", **of) == state["pool"]["bytes_max"]
        # At least that of who asks: the mount has sessions with the forwarders that it has needed.
        assert number(text, "tidegate_sessions", **of) >= 1 and state["counts"]["sessions"] >= 1
    assert sum(state["bytes"]["read"] for state in states) >= 100_000
    # With the applications' names.
    by_name = re.findall(r'^tidegate_application_bytes_total\{.*application="([^"]*)"', text, re.MULTILINE)
    assert by_name and not re.search(r"[0-9a-f]{16}", " ".join(by_name)), by_name
    assert "tidegate_findings{" not in text
    assert get(exporter.port, "/ready") == (200, "ready\n")
    assert get(exporter.port, "/healthy")[0] == 200
    assert get(exporter.port, "/nothing")[0] == 404


def test_a_forwarder_that_is_gone_is_told(exporter):
    kill_forwarder(exporter.up, 1)
    until(lambda: number(exporter.metrics(), "tidegate_up", forwarder="1") == 0, "it is up")
    text = exporter.metrics()
    assert number(text, "tidegate_up", forwarder="0") == 1
    assert number(text, "tidegate_findings", kind="silent") == 1
    assert not re.search(r'^tidegate_requests_total\{forwarder="1"', text, re.MULTILINE)
    status, said = get(exporter.port, "/ready")
    assert status == 503 and "forwarder 1" in said and "does not answer" in said


def test_forwarders_may_come_later(work):
    with work.part() as part:
        address = f"unix:{part / 'socket'}"
        exporter = Exporter(part, "--forwarders", address)
        assert exporter.log.read_text().count("asking again") == 1
        assert "tidegate_up{" not in exporter.metrics()
        status, why = get(exporter.port, "/ready")
        assert status == 503 and "no forwarder answers" in why
        part.folder("data")
        config = part.toml("forwarder.toml", export=part / "data", listen=[address])
        part.serve(config, part / "forwarder.log")
        until(lambda: "tidegate_up{" in exporter.metrics(), "it does not ask again")
        assert number(exporter.metrics(), "tidegate_up", forwarder="0") == 1
        assert exporter.log.read_text().endswith("forwarders answer\n")
        stop(exporter.process)


def test_another_set_at_the_same_place_is_found(work):
    """As after `down` and `up` with another directory: the exporter asks anew who the forwarders are."""
    with work.part() as part:
        address, exporter = f"unix:{part / 'socket'}", None
        for name in "first", "second":
            part.folder(name)
            config = part.toml(f"{name}.toml", export=part / name, listen=[address])
            forwarder = part.serve(config, part / f"{name}.log")
            exporter = exporter or Exporter(part, "--forwarders", address)
            until(lambda: number(exporter.metrics(), "tidegate_up", forwarder="0") == 1, "it is down")
            stop(forwarder)
            until(lambda: "tidegate_up{" not in (text := exporter.metrics())
                  or number(text, "tidegate_up", forwarder="0") == 0, "it is up")
        stop(exporter.process)


def test_what_is_wrong_with_the_command_line_is_told_at_once(work):
    with work.part() as part:
        for words, wanted in (("--forwarders", f"@{part / 'none'}"), "none: No such file"), \
                (("--forwarders", "tcp:x"), "address of a forwarder"), \
                (("--forwarders", "tcp:127.0.0.1:1", "--secret-file", part / "gone"), "gone: No such file"):
            done = run(TIDEGATE, "metrics", "--listen", "127.0.0.1:0", *words, code=2)
            assert wanted in done.stderr, done.stderr


def test_only_so_many_applications_have_numbers(forwarders):
    with forwarders(1) as up:
        for name in "one", "two", "three", "four":
            up.tidegate("run", "--app", name, "--", "sh", "-c", f"echo text > {up.mount}/{name}")
        exporter = Exporter(up, "--state-dir", up.state, "--applications", 2)
        text = exporter.metrics()
        device = "tidegate_application_device_seconds_total"
        assert len(re.findall(rf"^{device}\{{", text, re.MULTILINE)) == 2
        assert number(text, "tidegate_applications") >= 4
        stop(exporter.process)


def test_whoever_asks_wrongly_or_slowly_ends_at_a_bound(exporter):
    def said(sent, wait=30):
        with socket.create_connection(("127.0.0.1", exporter.port), timeout=wait) as asker:
            asker.sendall(sent)
            answer = b""
            while piece := asker.recv(1 << 16):
                answer += piece
            return answer
    assert said(b"\x16\x03\x01\x02\x00\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert said(b"DELETE /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 405 ")
    assert said(b"GET / HTTP/1.1\r\nA: " + b"x" * 9000).startswith(b"HTTP/1.1 431 ")
    assert said(b"GET /metrics HTTP").startswith(b"HTTP/1.1 408 ")
    assert said(b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n").startswith(b"HTTP/1.1 403 ")
    head = said(b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and head.endswith(b"\r\n\r\n")
    # More than are answered at once, which say nothing: others are answered after them.
    idle = [socket.create_connection(("127.0.0.1", exporter.port)) for _ in range(40)]
    try:
        for _ in range(20):
            assert get(exporter.port, "/healthy", timeout=60)[0] == 200
        # The oldest ones have made room.
        assert idle[0].recv(1) == b""
    finally:
        for one in idle:
            one.close()
    assert exporter.process.poll() is None


def test_a_wrong_address_is_refused(forwarders):
    with forwarders(1) as up:
        taken = socket.create_server(("127.0.0.1", 0))
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run(TIDEGATE, "metrics", "--state-dir", up.state, "--listen", listen, code=2)
        assert f"--listen {listen}: " in done.stderr
        taken.close()


class Prometheus:
    """A real one, with our rules, that looks at an exporter every second."""

    def __init__(self, work, exporter):
        self.port = free_port()
        rules = work.file("alerts.yml", ALERTS.read_text())
        config = work.file("prometheus.yml", json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": "tidegate",
                                "static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}]}]}))
        self.log = work / "prometheus.log"
        words = ("prometheus", "--config.file", config, "--storage.tsdb.path", work / "prometheus",
                 f"--web.listen-address=127.0.0.1:{self.port}", "--storage.tsdb.retention.time=1h")
        self.process = work.start(*words, log=self.log)

        def ready():
            assert self.process.poll() is None, tail(self.log)
            try:
                return get(self.port, "/-/ready")[0] == 200
            except OSError:
                return False
        until(ready, lambda: tail(self.log), 120)

    def ask(self, path, **words):
        status, text = get(self.port, f"/api/v1/{path}?{urllib.parse.urlencode(words)}")
        assert status == 200, f"{words}: {text}"
        return json.loads(text)["data"]

    def query(self, expression):
        return self.ask("query", query=expression)["result"]


def expressions():
    """Those of the dashboard and of the page of documents."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m")
    text = PAGE.read_text()
    asked = re.findall(r"^\| .*\? \| `(.+)` \|$", text, re.MULTILINE) + re.findall(r"```text\n(.+)\n```", text)
    assert len(asked) >= 6
    yield from ((PAGE.name, expression) for expression in asked)


def test_a_real_prometheus_takes_it_all(exporter):
    if not shutil.which("prometheus"):
        pytest.skip("prometheus is missing: run tools/need test")
    assert "SUCCESS" in run("promtool", "check", "rules", ALERTS).stdout
    prometheus = Prometheus(exporter.up, exporter)
    until(lambda: len(prometheus.query("tidegate_up == 1")) == 2, lambda: tail(prometheus.log), 60)
    # Two looks make a rate.
    until(lambda: prometheus.query("rate(tidegate_requests_total[1m]) > 0"), "no rate", 60)
    told = set(prometheus.ask("label/__name__/values"))
    for title, expression in expressions():
        found = prometheus.query(expression)
        # Requests that overlap others, and findings, there are none.
        assert found or "findings" in expression, f"{title}: {expression} finds nothing"
        named = set(re.findall(r"tidegate_\w+", expression))
        # Those of applications, merges and findings are there once there are any.
        assert named - {"tidegate_findings"} <= told, f"{title}: {named - told}"
    [target] = prometheus.ask("targets")["activeTargets"]
    assert target["health"] == "up", target["lastError"]
    until(lambda: all(rule["health"] == "ok" for group in prometheus.ask("rules")["groups"]
                      for rule in group["rules"]), "rules are not evaluated", 60)
    rules = {rule["name"]: rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]}
    assert len(rules) == ALERTS.read_text().count("- alert:") and "TidegateForwarderDown" in rules
    for name, rule in rules.items():
        assert rule["health"] == "ok" and not rule["alerts"], (name, rule)
        named = set(re.findall(r"tidegate_\w+", rule["query"]))
        assert named - {"tidegate_findings"} <= told, name
    kill_forwarder(exporter.up, 1)

    def pending():
        return [alert["labels"] for alert in prometheus.ask("alerts")["alerts"]]
    labels = until(lambda: [one for one in pending() if one["alertname"] == "TidegateForwarderDown"], "no alert", 60)
    assert labels[0]["forwarder"] == "1"
    stop(prometheus.process)


@pytest.mark.long
def test_a_page_of_ten_thousand_sessions_takes_less_than_50_ms(work):
    """The median of 21 looks, of the forwarder's time too: more than a second lies between them."""
    from session import Session
    with work.part() as part:
        address = f"unix:{part / 'socket'}"
        part.folder("data")
        config = part.toml("forwarder.toml", export=part / "data", listen=[address], sessions_max=12_000)
        part.serve(config, part / "forwarder.log")
        # Their programs have lost the connection, for fewer descriptors; a forwarder keeps them for a while.
        for client in range(10_000):
            session = Session(address, client + 1)
            session.greet()
            session.socket.close()
        exporter = Exporter(part, "--forwarders", address)
        took = []
        for _ in range(21):
            time.sleep(1.1)
            begun = time.monotonic()
            text = exporter.metrics()
            took.append(time.monotonic() - begun)
        assert number(text, "tidegate_sessions") >= 10_000
        assert sorted(took)[10] < 0.05, sorted(took)
        stop(exporter.process)
