"""Whether TCP endpoints answer from this host."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

PORTS = range(1, 65536)


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Split host:port or [IPv6]:port; raise ValueError that says what was expected."""
    host, _, port = endpoint.rpartition(":")
    if not host.strip("[]") or not port.isdigit() or int(port) not in PORTS:
        raise ValueError(f"{endpoint!r} is not an endpoint: expected host:port, for example mirror.example.com:443")
    return host.strip("[]"), int(port)


def probe(endpoints: list[str], timeout: float) -> list[dict[str, Any]]:
    """Connect to all endpoints at once; return each with the error that kept it from answering, or None.

    The whole call is over after the given seconds. Name resolution has no limit of its own, so the threads are
    left behind rather than waited for.
    """
    errors: dict[str, str | None] = {}

    def connect(endpoint: str, address: tuple[str, int]) -> None:
        try:
            socket.create_connection(address, timeout).close()
            errors[endpoint] = None
        except OSError as error:
            errors[endpoint] = str(error)

    addresses = {endpoint: split_endpoint(endpoint) for endpoint in endpoints}
    threads = [threading.Thread(target=connect, args=item, daemon=True) for item in addresses.items()]
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [{"endpoint": endpoint, "error": errors.get(endpoint, f"no answer within {timeout:g} s")} for endpoint in endpoints]
