# SPDX-License-Identifier: MIT
# api.py: a charge, its event and the answer are one transaction; a retry under the same key gets the first answer
import os

from fastapi import FastAPI, Request
from psycopg_pool import AsyncConnectionPool
from semel import AsyncOutbox
from semel.asgi import Idempotency, connection

app, payments = FastAPI(), AsyncOutbox("payment")
pool = AsyncConnectionPool(os.environ["DATABASE_URL"], open=False)
app.add_middleware(Idempotency, pool=pool, rule=lambda method, path: "required" if method == "POST" else "off",
                   caller=lambda scope: "ada")                               # yours: whoever is logged in
app.add_event_handler("startup", pool.open)

@app.post("/charges", status_code=201)
async def charge(request: Request):
    tx, order = connection(request), await request.json()
    await tx.execute("INSERT INTO charge VALUES (%s, %s)", [order["id"], order["cents"]])
    await payments.put(tx, order["id"], "charged", order)
    return {"charged": order["cents"]}
