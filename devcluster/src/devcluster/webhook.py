"""The admission webhook behind `Cluster.slow_writes`: it allows everything, late.

A process of its own, so that a busy test does not add to the delay. Run as

    python -m devcluster.webhook --port PORT --certificate FILE --key FILE

and control with `PUT /delay` and a body of `{"seconds": 1.5}`, in force for writes that come after the
answer. A request named `PROBE_NAME` is answered at once, with a warning that the API server passes on to its
client: that shows that a given API server has learned of the webhook.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from devcluster.tls_server import serve

PROBE_NAME = "devcluster-slow-writes-probe"
PROBE_WARNING = "devcluster slows writes"

_DELAY = web.AppKey("delay", list[float])


async def _review(request: web.Request) -> web.Response:
    admission = (await request.json())["request"]
    response: dict[str, object] = {"uid": admission["uid"], "allowed": True}
    if admission.get("name") == PROBE_NAME:
        response["warnings"] = [PROBE_WARNING]
    else:
        await asyncio.sleep(request.app[_DELAY][0])
    return web.json_response(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    )


async def _set_delay(request: web.Request) -> web.Response:
    request.app[_DELAY][0] = float((await request.json())["seconds"])
    return web.Response()


def _main() -> None:
    # A pod with a long environment is far below this; an object can't be larger than etcd's 1.5 MiB.
    application = web.Application(client_max_size=8 * 1024**2)
    application[_DELAY] = [0.0]
    application.add_routes([web.post("/", _review), web.put("/delay", _set_delay)])
    serve("devcluster.webhook", application, backlog=1024)


if __name__ == "__main__":
    _main()
