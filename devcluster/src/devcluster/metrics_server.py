"""The server behind `Cluster.external_metrics`: external.metrics.k8s.io/v1beta1 with values from a test.

Run as

    python -m devcluster.metrics_server --port PORT --certificate FILE --key FILE

and control with `PUT /values/NAMESPACE/METRIC` and a body of `{"value": "3"}`, or DELETE. It does not ask who
its clients are: authentication and authorization have been done by the API server in front of it, and
all clients are on this machine.
"""

from __future__ import annotations

from datetime import datetime, timezone

from aiohttp import web

from devcluster.tls_server import serve

GROUP = "external.metrics.k8s.io"
VERSION = "v1beta1"

_PATH = f"/apis/{GROUP}/{VERSION}"
_VALUES = web.AppKey("values", dict[tuple[str, str], str])


async def _discovery(_: web.Request) -> web.Response:
    resource = {"name": "*", "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList"}
    return web.json_response(
        {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{GROUP}/{VERSION}",
            "resources": [{**resource, "verbs": ["get"]}],
        }
    )


async def _metric(request: web.Request) -> web.Response:
    namespace, metric = request.match_info["namespace"], request.match_info["metric"]
    value = request.app[_VALUES].get((namespace, metric))
    items = []
    if value is not None:
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        items = [{"metricName": metric, "metricLabels": {}, "timestamp": now, "value": value}]
    return web.json_response(
        {
            "kind": "ExternalMetricValueList",
            "apiVersion": f"{GROUP}/{VERSION}",
            "metadata": {},
            "items": items,
        }
    )


async def _set(request: web.Request) -> web.Response:
    key = request.match_info["namespace"], request.match_info["metric"]
    request.app[_VALUES][key] = (await request.json())["value"]
    return web.Response()


async def _unset(request: web.Request) -> web.Response:
    request.app[_VALUES].pop((request.match_info["namespace"], request.match_info["metric"]), None)
    return web.Response()


def _main() -> None:
    application = web.Application()
    application[_VALUES] = {}
    application.add_routes(
        [
            web.get(_PATH, _discovery),
            web.get(f"{_PATH}/namespaces/{{namespace}}/{{metric}}", _metric),
            web.put("/values/{namespace}/{metric}", _set),
            web.delete("/values/{namespace}/{metric}", _unset),
        ]
    )
    serve("devcluster.metrics_server", application)


if __name__ == "__main__":
    _main()
