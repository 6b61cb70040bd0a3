#!/usr/bin/env python3
"""Stands for a newer version of the service: adds a member to every object in the responses of the service at
PETSTORE_URL, errors included.

    tests/generated-clients/newer_service.py COMMAND …

Runs COMMAND with PETSTORE_URL set to its own address, and exits as COMMAND does. Needs only the standard library.
"""

import http.client
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

SERVICE = urlsplit(os.environ["PETSTORE_URL"]).netloc
NEW_MEMBER = {"addedLater": {"text": "x", "list": [1, 2.5, True]}}


def with_new_member(body: Any) -> Any:
    """Returns a resource, or each resource of a list, with one member more."""
    if isinstance(body, list):
        return [with_new_member(resource) for resource in body]
    return body | NEW_MEMBER


class NewerService(BaseHTTPRequestHandler):
    """Forwards each request, on its own connection."""

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        connection = http.client.HTTPConnection(SERVICE, timeout=30)
        connection.request(self.command, self.path, body or None, dict(self.headers))
        response = connection.getresponse()
        changed = json.dumps(with_new_member(json.load(response))).encode()
        self.send_response_only(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("content-length", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(changed)))
        self.end_headers()
        self.wfile.write(changed)
        connection.close()

    do_GET = do_POST = do_PATCH = forward

    def log_message(self, *_: object) -> None:
        pass


with ThreadingHTTPServer(("127.0.0.1", 0), NewerService) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = os.environ | {"PETSTORE_URL": f"http://127.0.0.1:{server.server_port}"}
    status = subprocess.run(sys.argv[1:], env=environment, check=False).returncode
    server.shutdown()
sys.exit(status)
