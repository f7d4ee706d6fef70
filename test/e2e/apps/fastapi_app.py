# SPDX-License-Identifier: MIT
"""An application for middleware.py: python3 fastapi_app.py PORT. A request says what its handler does."""
import asyncio
import os
import sys

import fastapi
import psycopg_pool
import uvicorn
from fastapi.responses import Response, StreamingResponse

from semel.asgi import Idempotency, connection

app = fastapi.FastAPI()
pool = psycopg_pool.AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=2, max_size=10, open=False,
                                         timeout=float(os.environ.get("POOL_TIMEOUT", "30")))
app.add_middleware(Idempotency, pool=pool, rule=lambda method, path: "required" if path.startswith("/act") else "off",
                   caller=lambda scope: dict(scope["headers"]).get(b"x-user", b"").decode(),
                   wait=float(os.environ.get("WAIT", "20")), max_stored=100_000, max_answer=1_000_000)


@app.middleware("http")  # around the other: it takes over an answer at its own pace
async def around(request, call_next):
    return await call_next(request)


@app.on_event("startup")
async def start():
    await pool.open()


@app.post("/act")
async def act(request: fastapi.Request):
    asked = await request.json()
    done = await connection(request).execute(
        "INSERT INTO ledger VALUES (%s, 1) RETURNING clock_timestamp()::text", [request.headers["idempotency-key"]])
    body = (await done.fetchone())[0].encode() + b"x" * asked.get("size", 0)
    await asyncio.sleep(asked.get("sleep", 0))
    if asked.get("raise"):
        raise ValueError("as it was asked")
    status = asked.get("status", 201)
    if asked.get("stream"):
        answer = StreamingResponse((body[i:i + 5000] for i in range(0, len(body), 5000)), status)
    else:
        answer = Response(body, status)
    for name, value in asked.get("headers", []):
        answer.raw_headers.append((name.encode(), value.encode()))
    return answer


uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
