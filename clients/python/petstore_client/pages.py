"""Pagination: iterates over all pages of a list.

The next page is the URL in the `Link` header with rel="next". `walk` follows it and builds no URL itself, so it works
for every list operation of the service.
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from typing import Any, TypeVar

import httpx

from .generated import AuthenticatedClient
from .generated.models import Error
from .generated.types import Response

__all__ = ["PetstoreError", "async_walk", "walk"]

Item = TypeVar("Item")
Page = Response[Any] | httpx.Response


class PetstoreError(Exception):
    """An error response of the service. Branch on `code`; show `message` to people.

    `request_id` identifies the request in the service's log: quote it when you report a problem.
    """

    def __init__(self, body: Error, request_id: str | None = None) -> None:
        super().__init__(body.message)
        self.code = body.code
        self.message = body.message
        self.status = body.status
        self.request_id = request_id


def walk(
    client: AuthenticatedClient,
    first: Callable[[], Response[Any]],
    read: Callable[[Mapping[str, Any]], Item],
) -> Generator[Item]:
    """Yields every item of the page that `first` requests and of all later pages, parsed from JSON by `read`.

    Requests a page when the previous one is used up. Raises `PetstoreError` for an error response, and the exception of
    httpx if there is no response. Raises `ValueError` for a link to another origin instead of following it: the request
    would send the API key there.
    """
    http = client.get_httpx_client()
    page: Page = first()
    while True:
        yield from _items(page, read)
        url = _next_url(http.base_url, page)
        if url is None:
            return
        page = http.get(url)


async def async_walk(
    client: AuthenticatedClient,
    first: Callable[[], Awaitable[Response[Any]]],
    read: Callable[[Mapping[str, Any]], Item],
) -> AsyncGenerator[Item]:
    """Like `walk`, for `async for`."""
    http = client.get_async_httpx_client()
    page: Page = await first()
    while True:
        for item in _items(page, read):
            yield item
        url = _next_url(http.base_url, page)
        if url is None:
            return
        page = await http.get(url)


def _items(page: Page, read: Callable[[Mapping[str, Any]], Item]) -> list[Item]:
    try:
        body = json.loads(page.content)
    except ValueError:  # for example an HTML page of a proxy
        body = None
    if page.status_code == 200 and isinstance(body, list):
        return [read(item) for item in body]
    if isinstance(body, dict) and {"code", "message", "status"} <= body.keys():
        error = Error.from_dict(body)
    else:
        message = "The response is neither a page nor an error of this service."
        error = Error("unexpected_answer", message, int(page.status_code))
    raise PetstoreError(error, page.headers.get("X-Request-Id"))


def _next_url(base: httpx.URL, page: Page) -> httpx.URL | None:
    # The operations return only the headers; httpx parses links only on its own responses.
    link = httpx.Response(200, headers=page.headers).links.get("next")
    if link is None:
        return None
    url = base.join(link["url"])
    if (url.scheme, url.netloc) != (base.scheme, base.netloc):
        raise ValueError(f"The next page is at {url.host}, not at {base.host}: set the base URL to that host.")
    return url
