"""iperf3 between two nodes: what the network itself carries."""

import contextlib
import json
import subprocess
import time

from nodes import Failure
from systems import stop

PORT = 5201
PATIENCE_S = 10.0


@contextlib.contextmanager
def server(node):
    process = subprocess.Popen(node.words("iperf3", "-s", "-p", str(PORT)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while f":{PORT} " not in node.run("ss", "-Hltn").stdout:
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failure("iperf3 does not listen")
            time.sleep(0.05)
        yield
    finally:
        stop(process)


def measure(sender, receiver, seconds, streams=1, rate=None):
    """Bytes per second that arrive at the receiver, on which a server runs. `rate`: of each stream at most, in bytes per second."""
    words = ["iperf3", "-c", receiver.address, "-p", str(PORT), "-t", str(seconds), "-P", str(streams), "-J"]
    # The sender paces; the other direction of the program (-R) does not.
    words += ["--fq-rate", str(8 * rate)] if rate else []
    found = json.loads(sender.run(*words, timeout_s=60 + seconds).stdout)
    return found["end"]["sum_received"]["bits_per_second"] / 8
