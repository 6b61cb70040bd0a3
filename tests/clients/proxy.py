#!/usr/bin/env python3
"""A proxy between a client and the service that injects faults, to test how the client retries.

    tests/clients/proxy.py --upstream HOST:PORT --fault NAME [--listen 127.0.0.1:0] [--times N] [--delay SECONDS]
                           [--seed N]

Prints its address, `HOST:PORT`, and serves until SIGINT or SIGTERM. Then prints how many attempts at each call arrived,
as JSON.

The first N attempts at each call get the fault (default 1; 0 means every attempt), all later ones are forwarded.
Attempts belong to the same call if they have the same `Idempotency-Key`, or without one, the same method, target and
body. So every call gets the faults, and none depends on timing.

Needs only the standard library. Requests need a `Content-Length` if they have a body.
"""

import argparse
import asyncio
import json
import random
import re
import signal
import socket
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

HTML = b"<html><body><h1>%s</h1></body></html>\n"


@dataclass
class Exchange:
    """One request on a connection: what a fault can do with it."""

    proxy: "Proxy"
    request: bytes
    writer: asyncio.StreamWriter

    async def forward(self) -> bytes:
        """Returns the service's response."""
        reader, writer = await asyncio.open_connection(*self.proxy.upstream)
        try:
            head, body = self.request.split(b"\r\n\r\n", 1)
            head = re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", head)
            writer.write(head + b"\r\nConnection: close\r\n\r\n" + body)
            response = await reader.read()
        finally:
            writer.close()
        # The client may keep its connection to the proxy.
        return re.sub(rb"(?i)\r\nconnection: close", b"", response, count=1)

    async def send(self, response: bytes) -> None:
        self.writer.write(response)
        await self.writer.drain()

    async def answer(self, status: str, body: bytes, *headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}"]
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Closes the connection with a TCP reset."""
        connection: socket.socket = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def none(exchange: Exchange) -> None:
    """Forwards everything."""
    await exchange.send(await exchange.forward())


async def html_502(exchange: Exchange) -> None:
    """Answers 502 with HTML; the request does not reach the service."""
    await exchange.answer("502 Bad Gateway", HTML % b"502 Bad Gateway", "Content-Type: text/html")


async def html_503(exchange: Exchange) -> None:
    """Answers 503 with HTML; the request does not reach the service."""
    await exchange.answer("503 Service Unavailable", HTML % b"503 Service Unavailable", "Content-Type: text/html")


async def html_504(exchange: Exchange) -> None:
    """Answers 504 with HTML after the request took effect, like a gateway that stops waiting."""
    await exchange.forward()
    await exchange.answer("504 Gateway Timeout", HTML % b"504 Gateway Timeout", "Content-Type: text/html")


async def rate_limit(exchange: Exchange) -> None:
    """Answers 429 with `Retry-After: 1`; the request does not reach the service."""
    body = {"code": "rate_limited", "message": "The API key has reached its limit: retry in 1 s.", "status": 429}
    headers = ("Content-Type: application/json", "Retry-After: 1")
    await exchange.answer("429 Too Many Requests", json.dumps(body).encode(), *headers)


async def long_rate_limit(exchange: Exchange) -> None:
    """Answers 429 with `Retry-After: 120`, which is longer than a caller waits."""
    body = {"code": "rate_limited", "message": "The API key has reached its limit: retry in 120 s.", "status": 429}
    headers = ("Content-Type: application/json", "Retry-After: 120")
    await exchange.answer("429 Too Many Requests", json.dumps(body).encode(), *headers)


async def html_403(exchange: Exchange) -> None:
    """Answers 403 with HTML, like a firewall; the request does not reach the service."""
    await exchange.answer("403 Forbidden", HTML % b"403 Forbidden", "Content-Type: text/html")


async def bug_500(exchange: Exchange) -> None:
    """Answers 500 `internal_error` after the request took effect."""
    await exchange.forward()
    body = {"code": "internal_error", "message": "The service has a bug.", "status": 500}
    await exchange.answer("500 Internal Server Error", json.dumps(body).encode(), "Content-Type: application/json")


async def in_progress(exchange: Exchange) -> None:
    """Answers 409 `idempotency_in_progress`; the request does not reach the service."""
    body = {"code": "idempotency_in_progress", "message": "The first request is still in progress.", "status": 409}
    await exchange.answer("409 Conflict", json.dumps(body).encode(), "Content-Type: application/json")


async def reset(exchange: Exchange) -> None:
    """Resets the connection before the request reaches the service."""
    exchange.reset()


async def lost_answer(exchange: Exchange) -> None:
    """Closes the connection without an answer after the request took effect."""
    await exchange.forward()
    exchange.close()


async def half_answer(exchange: Exchange) -> None:
    """Closes the connection in the middle of the answer's body."""
    response = await exchange.forward()
    head = response.index(b"\r\n\r\n") + 4
    await exchange.send(response[: (head + len(response)) // 2])
    exchange.close()


async def half_head(exchange: Exchange) -> None:
    """Closes the connection in the middle of the answer's head."""
    response = await exchange.forward()
    await exchange.send(response[: response.index(b"\r\n\r\n") // 2])
    exchange.close()


async def delay(exchange: Exchange) -> None:
    """Answers only after the delay, although the request took effect."""
    response = await exchange.forward()
    await asyncio.sleep(exchange.proxy.delay)
    await exchange.send(response)


Fault = Callable[[Exchange], Awaitable[None]]
# A retry helps.
TRANSIENT: dict[str, Fault] = {
    "html-502": html_502,
    "html-503": html_503,
    "html-504": html_504,
    "rate-limit": rate_limit,
    "in-progress": in_progress,
    "reset": reset,
    "lost-answer": lost_answer,
    "half-answer": half_answer,
    "half-head": half_head,
    "delay": delay,
}
# A retry does not help.
FINAL: dict[str, Fault] = {
    "html-403": html_403,
    "bug-500": bug_500,
    "long-rate-limit": long_rate_limit,
}
# `mixed` is a random transient one for each attempt. The seed decides which.
SINGLE = TRANSIENT | FINAL
FAULTS = ["none", *SINGLE, "mixed"]


class Proxy:
    """Serves from `start` to `stop`. `attempts` counts the attempts at each call, in the order of the calls."""

    def __init__(self, upstream: str, fault: str, times: int = 1, delay: float = 3, seed: int = 1) -> None:
        host, port = upstream.rsplit(":", 1)
        self.upstream = (host, int(port))
        self.fault = fault
        self.times = times
        self.delay = delay
        self.seed = seed
        self.attempts: Counter[str] = Counter()

    async def start(self, listen: str = "127.0.0.1:0") -> str:
        """Returns the address that it listens on."""
        host, port = listen.rsplit(":", 1)
        self.connections: set[asyncio.Task[None]] = set()
        self.server = await asyncio.start_server(self._accept, host, int(port))
        return "{}:{}".format(*self.server.sockets[0].getsockname())

    async def stop(self) -> None:
        self.server.close()
        for connection in self.connections:
            connection.cancel()
        await asyncio.gather(*self.connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._serve(reader, writer))
        self.connections.add(connection)
        connection.add_done_callback(self.connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                await self._next_fault(head, body)(Exchange(self, head + body, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has closed the connection
        finally:
            writer.close()

    def _next_fault(self, head: bytes, body: bytes) -> Fault:
        key = re.search(rb"(?i)\r\nidempotency-key: *([^\r]*)", head)
        method, target, _ = head.split(b" ", 2)
        call = b" ".join([method, target, key[1] if key else body]).decode()
        self.attempts[call] += 1
        if self.times and self.attempts[call] > self.times:
            return none
        if self.fault == "mixed":
            number = list(self.attempts).index(call)
            return TRANSIENT[random.Random(f"{self.seed} {number} {self.attempts[call]}").choice(list(TRANSIENT))]
        return SINGLE.get(self.fault, none)


async def main(arguments: argparse.Namespace) -> None:
    proxy = Proxy(arguments.upstream, arguments.fault, arguments.times, arguments.delay, arguments.seed)
    print(await proxy.start(arguments.listen), flush=True)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    await proxy.stop()
    print(json.dumps(proxy.attempts))


if __name__ == "__main__":
    faults = {"none": none} | SINGLE
    listed = "".join(f"\n  {name:16}{(fault.__doc__ or '').splitlines()[0]}" for name, fault in faults.items())
    parser = argparse.ArgumentParser(
        description="Injects faults between a client and the service.",
        epilog=f"faults:{listed}\n  mixed           A random transient one for each attempt.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--upstream", required=True, metavar="HOST:PORT", help="the service")
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="port 0 is any free one")
    parser.add_argument("--fault", required=True, choices=FAULTS, metavar="NAME", help="see below")
    parser.add_argument("--times", type=int, default=1, metavar="N", help="faulty attempts at each call; 0: all (1)")
    parser.add_argument("--delay", type=float, default=3, metavar="SECONDS", help="of the fault `delay` (3)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the fault `mixed` (1)")
    sys.exit(asyncio.run(main(parser.parse_args())))
