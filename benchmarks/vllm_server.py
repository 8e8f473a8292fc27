"""A vLLM server in a process of its own, for the serving benchmark and the tests of the plugin."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def vllm_server(repo: Path, *flags: str, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start a server, and yield its address once it answers. Its output goes to a log beside the repo.

    Raises:
        RuntimeError: if it stops, or does not answer for ten minutes.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The module that `vllm serve` runs. The command itself needs a distribution called vllm, which a CPU does not have.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(repo), "--port", str(port)]
    command += ["--trust-remote-code", "--trust-request-mm-kwargs", *flags]  # a request may bring its own ratio
    log = repo.with_suffix(".log")
    with log.open("w") as written:
        process = subprocess.Popen(
            command, stdout=written, stderr=subprocess.STDOUT, env=os.environ | dict(environment or {})
        )
    try:
        for _ in range(1200):
            time.sleep(0.5)
            if process.poll() is not None:
                raise RuntimeError(log.read_text()[-12000:])
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                continue
        else:
            raise RuntimeError(log.read_text()[-12000:])
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
