#!/usr/bin/env python3
"""The page, the metrics and the health of a running burst buffer, looked at with a real browser (Chromium, headless) and a real Prometheus.

    sudo python3 tests/web/main.py [--forebay BIN] [--quick]

Makes everything below a temporary folder, and takes it away. Exit 1 names the first thing that is not as it should be.
"""

import argparse
import contextlib
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from machine import MIB, Failure, run, skip, stop  # noqa: E402

PATIENCE_S = 60.0
ALERTS = ROOT / "integrations/prometheus/forebay.rules.yml"
DASHBOARD = ROOT / "integrations/grafana/forebay.json"


def check(is_so, what):
    if not is_so:
        raise Failure(what)


def until(what, look, patience_s=PATIENCE_S):
    end = time.monotonic() + patience_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            raise Failure(f"not within {patience_s:.0f} s: {what}")
        time.sleep(0.25)


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Buffer:
    """`forebay up` on a folder, with a page."""

    def __init__(self, binary, base, names="true", listen=None):
        self.binary, self.base = Path(binary).resolve(), base
        self.port = free_port()
        listen = listen or f"127.0.0.1:{self.port}"
        for name in ("pfs", "mnt", "ssd", "state"):
            (base / name).mkdir()
        self.config = base / "forebay.toml"
        self.config.write_text(f'''pfs = "{base}/pfs"
mount = "{base}/mnt"
state = "{base}/state"
dram = "64MiB"
ssd = ["{base}/ssd:256MiB"]
[http]
listen = "{listen}"
names = {names}
''')

    def __enter__(self):
        run([self.binary, "up", "--config", self.config, "--detach"], timeout_s=PATIENCE_S)
        return self

    def __exit__(self, *_):
        with contextlib.suppress(Failure):
            run([self.binary, "down", "--state", self.base / "state"], timeout_s=PATIENCE_S)

    def get(self, path, host=None, method="GET", accept=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method)
        if host:
            request.add_header("Host", host)
        if accept:
            request.add_header("Accept", accept)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode(), dict(answer.headers)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), dict(error.headers)

    def status(self):
        return json.loads(run([self.binary, "status", "--json", "--state", self.base / "state"], timeout_s=PATIENCE_S).stdout)

    def write(self, name, mib):
        path = self.base / "mnt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            file.write(os.urandom(mib * MIB))
            os.fsync(file.fileno())


def samples(text):
    """Names and labels of a text, with their values."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def look_at_form(buffer):
    """Prometheus' own program reads the metrics."""
    text = buffer.get("/metrics")[1]
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    check(checked.returncode == 0, f"promtool: {checked.stdout}{checked.stderr}")


def look_at_answers(buffer):
    until("it answers", lambda: answers(buffer))
    buffer.write("job/ckpt-1", 4)
    code, text, headers = buffer.get("/metrics")
    check(code == 200 and headers["content-type"].startswith("text/plain; version=0.0.4"), f"/metrics: {code}, {headers}")
    _, opened, headers = buffer.get("/metrics", accept="application/openmetrics-text; version=1.0.0")
    check(headers["content-type"].startswith("application/openmetrics-text"), f"{headers}")
    check(opened.endswith("# EOF\n"), "OpenMetrics has an end")
    # The status is at most half a second old.
    until("the metrics have what status has", lambda: samples(buffer.get("/metrics")[1])["forebay_files"] == buffer.status()["files"], 10)
    found, status = samples(buffer.get("/metrics")[1]), buffer.status()
    check(found['forebay_tier_capacity_bytes{tier="ssd"}'] == 256 * MIB, "the capacity of flash")
    check(any(name.startswith("forebay_application_resident_bytes{") for name in found), "applications, by order")
    check(buffer.get("/healthz")[:2] == (200, "ok\n"), "it is well")
    check(buffer.get("/", host="evil.example")[0] == 421, "another name is refused")
    check(buffer.get("/", method="POST")[0] == 405, "nothing can be changed")
    check(buffer.get("/../etc/passwd")[0] == 404, "there are no files")
    check(json.loads(buffer.get("/status.json")[1])["files"] == status["files"], "the same status as the command's")
    code, _, headers = buffer.get("/")
    check(code == 200 and "default-src 'none'" in headers["content-security-policy"], "the page may load nothing else")


def answers(buffer):
    try:
        return buffer.get("/healthz")[0] == 200
    except OSError:
        return False


def browse(url, width=1200, dark=False):
    """The page as a browser has it after some seconds of its own clock."""
    with tempfile.TemporaryDirectory(prefix="forebay-browser-") as profile:
        words = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}",
                 f"--window-size={width},1400", "--virtual-time-budget=9000", "--dump-dom"]
        words += ["--force-dark-mode"] if dark else []
        return run([*words, url], timeout_s=PATIENCE_S).stdout


def look_at_page(buffer):
    url = f"http://127.0.0.1:{buffer.port}/"
    page = browse(url)
    status = buffer.status()
    check('data-shown="' in page, "the script has shown nothing")
    check(f'<b>{status["files"]}</b>' in page, f"the page does not say that there are {status['files']} files")
    check(re.search(r'id="health" class="pill good"[^>]*>ok<', page), "the page does not say that all is well")
    for name in ("dram", "ssd", "pfs"):
        check(f"<td>{name}</td>" in page, f"the page lacks the tier {name}")
    check("job" in page, "the page lacks the application")
    check(page.count("<svg") >= 6 and 'class="line s0"' in page, "charts are not drawn")
    look_at_labels(buffer)
    for number in range(2, 5):
        buffer.write(f"job/ckpt-{number}", 2)
    # A browser whose clock is its own is faster than the status grows old, and copies of old versions go meanwhile.
    def follows():
        files = buffer.status()["files"]
        return files > status["files"] and f"<b>{files}</b>" in browse(url, width=390, dark=True)
    until("the page follows what is written", follows, 20)
    code, _, _ = buffer.get("/metrics")
    check(code == 200, "it still answers")


@contextlib.contextmanager
def served_again(buffer, change):
    """The same page at another address, with a status that is changed on its way."""
    class Passes(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802
            code, body, headers = buffer.get(self.path)
            if self.path == "/status.json":
                body = json.dumps(change(json.loads(body)))
            body = body.encode()
            self.send_response(code)
            self.send_header("Content-Type", headers["content-type"])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Passes) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


def look_at_labels(buffer):
    """Limits that lie close together have one label, and those that do not have one each. A plan comes only after days of a site's own checkpoints."""
    def labels(start, full):
        def planned(status):
            status["plan"].update(start_dwsf_bytes=start, full_dwsf_bytes=full)
            return status
        with served_again(buffer, planned) as url:
            chart = re.search(r'id="plan" class="chart">(.*?)</svg>', browse(url))
        check(chart, "the plan is not drawn")
        return re.findall(r'<text class="limit-name"[^>]*>([^<]*)<', chart[1])
    found = labels(0, 0)
    check(found in (["demotion starts, at full speed"], ["at full speed, demotion starts"]), f"limits at 0: {found}")
    found = labels(MIB, 1024 * MIB)
    check(sorted(found) == ["at full speed", "demotion starts"], f"limits apart: {found}")


def look_at_movements(buffer):
    """A stage-out of a file that is open waits for some seconds, and is on the page meanwhile, as often as it is ordered."""
    url = f"http://127.0.0.1:{buffer.port}/"
    page = browse(url)
    check('id="now-part" hidden' in page, "something is on its way before anything is ordered")
    check("<span>Has the turn</span><b>nobody</b>" in page, "the page does not say who has the turn")
    path = buffer.base / "mnt" / "open"
    with open(path, "wb") as file:
        file.write(os.urandom(MIB))
        file.flush()
        again = 'while [ -e "$2" ]; do "$1" stage-out --wait "$2" >/dev/null 2>&1; done'
        process = subprocess.Popen(["sh", "-c", again, "sh", buffer.binary, path])
        try:
            until("stage-out is in the status", lambda: [moves["movement"] for moves in buffer.status()["movements"]] == ["stage-out"])
            shown = re.compile(r"<td>0 of 1 files</td><td>stage-out</td>")
            until("stage-out is on the page", lambda: shown.search(browse(url)))
        finally:
            path.unlink()
            process.wait(timeout=PATIENCE_S)


def look_with_prometheus(buffer, base):
    """A real one scrapes it, takes the alerts, and answers every query of the dashboard."""
    run(["promtool", "check", "rules", ALERTS], timeout_s=PATIENCE_S)
    run(["promtool", "test", "rules", Path(__file__).with_name("alerts.yml")], timeout_s=PATIENCE_S)
    port = free_port()
    config = base / "prometheus.yml"
    config.write_text(f'''global:
  scrape_interval: 1s
  evaluation_interval: 1s
scrape_configs:
  - job_name: forebay
    static_configs:
      - targets: ["127.0.0.1:{buffer.port}"]
rule_files: ["{ALERTS}"]
''')
    words = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={base}/tsdb", f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    with open(base / "prometheus.log", "wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, cwd=base)
    try:
        def ask(path, **words):
            url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(words)}"
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return json.load(answer)["data"]

        def scraped():
            with contextlib.suppress(OSError):
                found = ask("query", query="forebay_files")["result"]
                return found and float(found[0]["value"][1]) == buffer.status()["files"]
            return False

        until("Prometheus has what status says", scraped)
        types = {entry[0]["type"] for name, entry in ask("metadata").items() if name.startswith("forebay_")}
        check({"gauge", "counter"} <= types, f"types: {types}")
        for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$instance", ".*")
                # A query that Prometheus does not understand is an HTTP error.
                ask("query", query=expression)
        filled = ask("query", query='forebay_tier_used_bytes{instance=~".*"} / forebay_tier_capacity_bytes{instance=~".*"}')["result"]
        check(len(filled) >= 3, f"the dashboard's tiers: {filled}")
        alerts = ask("rules")["groups"][0]["rules"]
        check(len(alerts) >= 10 and all(rule["health"] != "err" for rule in alerts), f"alerts: {alerts}")
        firing = {alert["labels"]["alertname"] for alert in ask("alerts")["alerts"] if alert["state"] == "firing"}
        check(not firing, f"alerts without a reason: {firing}")
        return len(alerts)
    finally:
        stop(process)


def look_at_a_socket(binary, base):
    """Over a Unix socket each user is shown what the command shows that user."""
    path = base / "http.sock"
    with Buffer(binary, base, names="false", listen=f"unix:{path}") as buffer:
        until("the socket is there", path.exists)
        buffer.write("secret/ckpt-1", 1)

        def get(user=None):
            words = ["curl", "-sS", "--unix-socket", path, "http://localhost/status.json"]
            words = words if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *words]
            return json.loads(run(words, timeout_s=PATIENCE_S).stdout)
        for folder in (base, base.parent):
            folder.chmod(0o755)
        check(get()["names_hidden"] is False, "root sees names")
        check(get(user=1234)["names_hidden"] is True, "others do not")
    check(not path.exists(), "the socket goes with the server")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forebay", default=ROOT / "target/release/forebay", type=Path)
    parser.add_argument("--quick", action="store_true", help="answers, and the page in a browser: no Prometheus")
    args = parser.parse_args()
    if os.geteuid() != 0:
        skip("tests/web", "it needs root")
    needed = ("chromium",) if args.quick else ("chromium", "prometheus", "promtool", "curl", "setpriv")
    missing = [name for name in needed if not shutil.which(name)]
    if missing:
        raise Failure(f"missing: {', '.join(missing)}: scripts/setup.sh web")
    with tempfile.TemporaryDirectory(prefix="forebay-web-") as made:
        base = Path(made)
        (base / "tcp").mkdir()
        (base / "unix").mkdir()
        with Buffer(args.forebay, base / "tcp") as buffer:
            look_at_answers(buffer)
            print("answers: ok", flush=True)
            look_at_page(buffer)
            if args.quick:
                print("web: quick: all ok")
                return
            look_at_movements(buffer)
            print("page in a browser: ok", flush=True)
            look_at_form(buffer)
            count = look_with_prometheus(buffer, base)
            print(f"Prometheus, {count} alerts, dashboard: ok", flush=True)
        look_at_a_socket(args.forebay, base / "unix")
        print("Unix socket: ok", flush=True)
    print("web: all ok")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        print(f"web: {failure}", file=sys.stderr)
        sys.exit(1)
