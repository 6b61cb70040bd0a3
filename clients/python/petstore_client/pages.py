"""Walks over the pages of a list.

The server says where the next page is, in the header `Link` with rel="next"; a walk follows it and builds no address of
its own, so it works for every list of the service.
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
    """An answer that is an error, with what its body says. Decide by `code`; show `message` to people.

    `request_id` names the request in the service's log: quote it when you ask for help.
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
    """Every item of the page that `first` asks for, and of all pages after it, each made by `read` from its JSON.

    A page is asked for when the one before it is used up. Raises `PetstoreError` when a page is answered with an error,
    and what httpx raises when there is no answer. A link to another origin is not followed but raises `ValueError`: the
    request would take the API key there.
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
    """As `walk`, for `async for`."""
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
    except ValueError:  # a proxy's page, perhaps
        body = None
    if page.status_code == 200 and isinstance(body, list):
        return [read(item) for item in body]
    if isinstance(body, dict) and {"code", "message", "status"} <= body.keys():
        error = Error.from_dict(body)
    else:
        error = Error("unexpected_answer", "The answer is not one of this service.", int(page.status_code))
    raise PetstoreError(error, page.headers.get("X-Request-Id"))


def _next_url(base: httpx.URL, page: Page) -> httpx.URL | None:
    # The operations give the headers only; httpx reads links in answers of its own.
    link = httpx.Response(200, headers=page.headers).links.get("next")
    if link is None:
        return None
    url = base.join(link["url"])
    if (url.scheme, url.netloc) != (base.scheme, base.netloc):
        raise ValueError(f"The next page is at {url.host}, not at {base.host}: use that address for the client.")
    return url
