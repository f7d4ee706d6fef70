# SPDX-License-Identifier: MIT
"""A payment endpoint with FastAPI: DATABASE_URL=postgres://... python3 fastapi_payments.py PORT

The charge and the answer commit together. A client that retries under its key gets the first answer.
"""
import os
import sys

import pydantic
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from psycopg_pool import AsyncConnectionPool

from semel.asgi import Idempotency, connection

CUSTOMERS = {b"Bearer secret-of-ada": "ada", b"Bearer secret-of-bob": "bob"}  # yours: a session, or a verified token


def customer(scope):
    return CUSTOMERS.get(dict(scope["headers"]).get(b"authorization"))


app = FastAPI()
pool = AsyncConnectionPool(os.environ["DATABASE_URL"], open=False)
app.add_middleware(Idempotency, pool=pool, caller=customer,
                   rule=lambda method, path: "required" if method == "POST" else "off")


class Charge(pydantic.BaseModel):
    cents: int


@app.on_event("startup")
async def start():
    await pool.open()


@app.post("/charges", status_code=201)
async def charge(request: Request, wanted: Charge):
    if wanted.cents <= 0:
        raise HTTPException(422, "cents must be positive")  # rolled back; the key may be used again
    made = await connection(request).execute("INSERT INTO charge (customer, cents) VALUES (%s, %s) RETURNING id",
                                             [customer(request.scope), wanted.cents])
    return {"id": (await made.fetchone())[0], "cents": wanted.cents}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
