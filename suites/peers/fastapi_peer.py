"""The three operations on FastAPI and asyncpg, as a careful developer would write them in an afternoon.

It checks less than the service does (one key from the environment, bodies by pydantic), which is in its favour. Run by
uvicorn with two workers.
"""

import os
from contextlib import asynccontextmanager
from enum import Enum
from typing import Annotated, Optional

import asyncpg
from fastapi import Depends, FastAPI, Header, HTTPException, Query, Response
from pydantic import BaseModel

COLUMNS = 'id, name, category_id AS "categoryId", status'


@asynccontextmanager
async def lifespan(app):
    app.state.pool = await asyncpg.create_pool(os.environ["DATABASE_URL"], min_size=8, max_size=8)
    yield
    await app.state.pool.close()


def authenticate(authorization: Annotated[str, Header()] = ""):
    if authorization != "Bearer " + os.environ["KEY"]:
        raise HTTPException(401)


app = FastAPI(lifespan=lifespan, dependencies=[Depends(authenticate)])


class Status(str, Enum):
    available = "available"
    pending = "pending"
    sold = "sold"


class NewPet(BaseModel):
    name: str
    categoryId: int
    status: Optional[Status] = None


class Pet(NewPet):
    id: int


@app.get("/v1/pets")
async def list_pets(status: Optional[Status] = None, after: int = 0, limit: Annotated[int, Query(le=100)] = 20) -> list[Pet]:
    if status:
        sql = f"SELECT {COLUMNS} FROM pets WHERE status = $3 AND id > $1 ORDER BY id LIMIT $2"
        return [dict(row) for row in await app.state.pool.fetch(sql, after, limit, status.value)]
    sql = f"SELECT {COLUMNS} FROM pets WHERE id > $1 ORDER BY id LIMIT $2"
    return [dict(row) for row in await app.state.pool.fetch(sql, after, limit)]


@app.get("/v1/pets/{pet_id}")
async def get_pet(pet_id: int) -> Pet:
    row = await app.state.pool.fetchrow(f"SELECT {COLUMNS} FROM pets WHERE id = $1", pet_id)
    if row is None:
        raise HTTPException(404)
    return dict(row)


@app.post("/v1/pets", status_code=201)
async def create_pet(new: NewPet, response: Response) -> Pet:
    sql = f"INSERT INTO pets (name, category_id, status) VALUES ($1, $2, $3) RETURNING {COLUMNS}"
    row = await app.state.pool.fetchrow(sql, new.name, new.categoryId, new.status and new.status.value)
    response.headers["Location"] = f"/v1/pets/{row['id']}"
    return dict(row)
