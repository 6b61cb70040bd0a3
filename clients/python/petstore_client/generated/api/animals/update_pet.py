from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ... import errors
from ...client import AuthenticatedClient, Client
from ...models.error import Error
from ...models.pet import Pet
from ...models.pet_patch import PetPatch
from ...types import UNSET, Response, Unset


def _get_kwargs(
    pet_id: int,
    *,
    body: PetPatch | Unset = UNSET,
    if_match: str | Unset = UNSET,
) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    if not isinstance(if_match, Unset):
        headers["If-Match"] = if_match

    _kwargs: dict[str, Any] = {
        "method": "patch",
        "url": "/pets/{pet_id}".format(
            pet_id=quote(str(pet_id), safe=""),
        ),
    }

    if isinstance(body, PetPatch):
        _kwargs["json"] = body.to_dict()

        headers["Content-Type"] = "application/json"
    if isinstance(body, PetPatch):
        _kwargs["json"] = body.to_dict()

        headers["Content-Type"] = "application/merge-patch+json"

    _kwargs["headers"] = headers
    return _kwargs


def _parse_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> Error | Pet | None:
    if response.status_code == 200:
        response_200 = Pet.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = Error.from_dict(response.json())

        return response_400

    if response.status_code == 401:
        response_401 = Error.from_dict(response.json())

        return response_401

    if response.status_code == 403:
        response_403 = Error.from_dict(response.json())

        return response_403

    if response.status_code == 404:
        response_404 = Error.from_dict(response.json())

        return response_404

    if response.status_code == 408:
        response_408 = Error.from_dict(response.json())

        return response_408

    if response.status_code == 409:
        response_409 = Error.from_dict(response.json())

        return response_409

    if response.status_code == 412:
        response_412 = Error.from_dict(response.json())

        return response_412

    if response.status_code == 413:
        response_413 = Error.from_dict(response.json())

        return response_413

    if response.status_code == 414:
        response_414 = Error.from_dict(response.json())

        return response_414

    if response.status_code == 415:
        response_415 = Error.from_dict(response.json())

        return response_415

    if response.status_code == 429:
        response_429 = Error.from_dict(response.json())

        return response_429

    if response.status_code == 431:
        response_431 = Error.from_dict(response.json())

        return response_431

    if response.status_code == 500:
        response_500 = Error.from_dict(response.json())

        return response_500

    if response.status_code == 503:
        response_503 = Error.from_dict(response.json())

        return response_503

    if client.raise_on_unexpected_status:
        raise errors.UnexpectedStatus(response.status_code, response.content)
    else:
        return None


def _build_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> Response[Error | Pet]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    pet_id: int,
    *,
    client: AuthenticatedClient,
    body: PetPatch | Unset = UNSET,
    if_match: str | Unset = UNSET,
) -> Response[Error | Pet]:
    """Change a pet

     Fields that the body leaves out do not change; an empty object changes nothing and returns the pet
    with its `ETag`.
    To avoid overwriting another client's change, send the pet's `ETag` in `If-Match`. Any change of
    `status` is
    allowed, except from `sold` to `pending`; while an order is open, only the order changes it.

    Args:
        pet_id (int):
        if_match (str | Unset):
        body (PetPatch): A change to a pet: a field that is left out keeps its value. Example:
            {'status': 'sold'}.
        body (PetPatch): A change to a pet: a field that is left out keeps its value. Example:
            {'status': 'sold'}.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Error | Pet]
    """

    kwargs = _get_kwargs(
        pet_id=pet_id,
        body=body,
        if_match=if_match,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    pet_id: int,
    *,
    client: AuthenticatedClient,
    body: PetPatch | Unset = UNSET,
    if_match: str | Unset = UNSET,
) -> Error | Pet | None:
    """Change a pet

     Fields that the body leaves out do not change; an empty object changes nothing and returns the pet
    with its `ETag`.
    To avoid overwriting another client's change, send the pet's `ETag` in `If-Match`. Any change of
    `status` is
    allowed, except from `sold` to `pending`; while an order is open, only the order changes it.

    Args:
        pet_id (int):
        if_match (str | Unset):
        body (PetPatch): A change to a pet: a field that is left out keeps its value. Example:
            {'status': 'sold'}.
        body (PetPatch): A change to a pet: a field that is left out keeps its value. Example:
            {'status': 'sold'}.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Error | Pet
    """

    return sync_detailed(
        pet_id=pet_id,
        client=client,
        body=body,
        if_match=if_match,
    ).parsed


async def asyncio_detailed(
    pet_id: int,
    *,
    client: AuthenticatedClient,
    body: PetPatch | Unset = UNSET,
    if_match: str | Unset = UNSET,
) -> Response[Error | Pet]:
    """Change a pet

     Fields that the body leaves out do not change; an empty object changes nothing and returns the pet
    with its `ETag`.
    To avoid overwriting another client's change, send the pet's `ETag` in `If-Match`. Any change of
    `status` is
    allowed, except from `sold` to `pending`; while an order is open, only the order changes it.

    Args:
        pet_id (int):
        if_match (str | Unset):
        body (PetPatch): A change to a pet: a field that is left out keeps its value. Example:
            {'status': 'sold'}.
        body (PetPatch): A change to a pet: a field that is left out keeps its value. Example:
            {'status': 'sold'}.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[Error | Pet]
    """

    kwargs = _get_kwargs(
        pet_id=pet_id,
        body=body,
        if_match=if_match,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    pet_id: int,
    *,
    client: AuthenticatedClient,
    body: PetPatch | Unset = UNSET,
    if_match: str | Unset = UNSET,
) -> Error | Pet | None:
    """Change a pet

     Fields that the body leaves out do not change; an empty object changes nothing and returns the pet
    with its `ETag`.
    To avoid overwriting another client's change, send the pet's `ETag` in `If-Match`. Any change of
    `status` is
    allowed, except from `sold` to `pending`; while an order is open, only the order changes it.

    Args:
        pet_id (int):
        if_match (str | Unset):
        body (PetPatch): A change to a pet: a field that is left out keeps its value. Example:
            {'status': 'sold'}.
        body (PetPatch): A change to a pet: a field that is left out keeps its value. Example:
            {'status': 'sold'}.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Error | Pet
    """

    return (
        await asyncio_detailed(
            pet_id=pet_id,
            client=client,
            body=body,
            if_match=if_match,
        )
    ).parsed
