"""The exceptions that calls raise, and how they are made from what came back."""

from __future__ import annotations

import json
from email.utils import parsedate_to_datetime
from typing import Any

import httpx


class PetstoreError(Exception):
    """A call failed. The subclasses tell the kinds apart, `code` each cause."""

    code: str
    """For programs. Codes never change; new ones may be added. The SDK itself adds `no_response` and
    `unexpected_response` to those of the service."""
    message: str
    """For people. Its wording may change."""
    status: int | None
    """The HTTP status; None if there was no response."""
    request_id: str | None
    """Identifies the request in the service's log: quote it when you report a problem."""
    retry_after_seconds: float | None
    """How long the service asks you to wait."""
    field: str | None
    """The field of the body, the query parameter or the header that is wrong; None if it is none of these."""
    outcome_unknown: bool
    """Whether the call may have taken effect nevertheless: an attempt to write got no response, 503 `outcome_unknown`,
    or another 5xx. After 503 `unavailable`, it has not."""

    # The defaults let pickle restore an exception.
    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        status: int | None = None,
        request_id: str | None = None,
        retry_after_seconds: float | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.request_id = request_id
        self.retry_after_seconds = retry_after_seconds
        self.field = field
        self.outcome_unknown = False

    def __str__(self) -> str:
        details = [self.code]
        if self.status is not None:
            details.append(f"status {self.status}")
        if self.request_id is not None:
            details.append(f"request id {self.request_id}")
        if self.outcome_unknown:
            details.append("the call may have taken effect")
        return f"{self.message} ({', '.join(details)})"


class BadRequestError(PetstoreError):
    """The request is wrong: 400, and any other 4xx without its own class."""


class AuthenticationError(PetstoreError):
    """401: the API key is missing, malformed, unknown, expired or revoked."""


class PermissionDeniedError(PetstoreError):
    """403: the API key lacks the scope that the operation needs."""


class NotFoundError(PetstoreError):
    """404 `pet_not_found` or `order_not_found`: no pet or order has this id."""


class RouteNotFoundError(PetstoreError):
    """Any other 404: the service has no such path, or another server responded. Check the base URL.

    It says nothing about a pet or an order, so it is not a `NotFoundError`.
    """


class ConflictError(PetstoreError):
    """409: the pet or the order is not in a state that allows this, or another pet has the `reference`."""


class CursorExpiredError(PetstoreError):
    """410 `cursor_expired`: the events after this position are no longer kept, or the database was restored.

    Start again: get `events.position()`, read the pets and orders that you need, then follow from that position.
    """


class PreconditionFailedError(PetstoreError):
    """412: the pet has changed since you read its `etag`.

    If `outcome_unknown` is true and the service is older than 1.3.0, the change may be your own, by an attempt whose
    response was lost: read the pet.
    """


class RateLimitError(PetstoreError):
    """429: the API key has reached its limit."""


class InternalServerError(PetstoreError):
    """The service has a bug: 500, and any other 5xx without its own class."""


class ServiceUnavailableError(PetstoreError):
    """408, 502, 503 or 504: the service, or a proxy in front of it, could not handle the request in time."""


class APIConnectionError(PetstoreError):
    """There was no complete response: the connection was refused or broken, or timed out."""


class ClientClosedError(PetstoreError):
    """The client was closed while the call was waiting, or before it began."""

    # The defaults let pickle restore an exception.
    def __init__(self, message: str = "The client is closed.", *, code: str = "client_closed") -> None:
        super().__init__(message, code=code)


class ClientMovedError(PetstoreError):
    """The client has your own `http_client`, which was used before a fork, or in another event loop.

    Its connections cannot be used here, so the attempt was not sent. Create a client after the fork, or one in each
    event loop. A client without `http_client` can be used everywhere.
    """

    # The defaults let pickle restore an exception.
    def __init__(
        self,
        message: str = "Another process or event loop uses the connections of your `http_client`. "
        "Create the client after the fork, or one in each event loop.",
        *,
        code: str = "client_moved",
    ) -> None:
        super().__init__(message, code=code)


_BY_STATUS: dict[int, type[PetstoreError]] = {
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: RouteNotFoundError,
    408: ServiceUnavailableError,
    409: ConflictError,
    412: PreconditionFailedError,
    429: RateLimitError,
    502: ServiceUnavailableError,
    503: ServiceUnavailableError,
    504: ServiceUnavailableError,
}


def from_response(response: httpx.Response) -> PetstoreError:
    """Returns the exception for a response that is not the expected one, whatever its body."""
    status = response.status_code
    body = {} if response.is_success else _error_body(response)
    code, message = body.get("code", "unexpected_response"), body.get("message", "")
    kind = _kind(status, code)
    if not message:  # for example a proxy's HTML
        content_type = response.headers.get("Content-Type", "no content type")
        message = f"The response is not from the service (status {status}, {content_type})."
    if kind is RouteNotFoundError or (code == "unexpected_response" and status < 400):
        url = response.request.url.copy_with(query=None)
        message += f" Check the base URL and the path: the request was sent to {url}."
    return kind(
        message,
        code=code,
        status=status,
        request_id=response.headers.get("X-Request-Id"),
        retry_after_seconds=_retry_after(response.headers),
        field=body.get("field"),
    )


def _kind(status: int, code: str) -> type[PetstoreError]:
    """Returns the class for an error response. It follows the status, so that it also fits codes that are added later.

    Only two classes depend on the code. A missing pet or order must not be confused with a wrong base URL.
    """
    if code == "cursor_expired":
        return CursorExpiredError
    if status == 404 and code.endswith("_not_found") and code != "route_not_found":
        return NotFoundError
    default = {4: BadRequestError, 5: InternalServerError}.get(status // 100, PetstoreError)
    return _BY_STATUS.get(status, default)


def _error_body(response: httpx.Response) -> dict[str, str]:
    """Returns the texts in the body of an error, or nothing if it is not from the service."""
    try:
        body = json.loads(response.content)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(body, dict):
        return {}
    texts = {name: value for name, value in body.items() if isinstance(value, str)}
    return texts if "code" in texts and "message" in texts else {}


def from_exception(exception: httpx.RequestError) -> PetstoreError:
    """Returns the exception for a request without a complete response."""
    description = f"{type(exception).__name__}: {exception}".rstrip(": ")
    return APIConnectionError(f"No response from the service: {description}", code="no_response")


def _retry_after(headers: httpx.Headers) -> float | None:
    """Returns the seconds in `Retry-After`, which may also be a date: that is relative to the response's own."""
    value: Any = headers.get("Retry-After")
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - parsedate_to_datetime(headers["Date"])).total_seconds())
    except (TypeError, ValueError, LookupError, OverflowError):
        return None
