"""Train a small job and say how it went: what `helm test` runs in a pod (the chart's templates/tests).

    python -m elasticjob_operator.helm_test JOB SECONDS

JOB is an ElasticJob as JSON. The exit code is 0 if the job is Complete within SECONDS, otherwise 1. The job
is deleted in any case.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from elasticjob.api.connection import ConfigurationError, Connection, connect
from elasticjob.api.errors import ApiError, Conflict, NotFound, Unavailable, from_status
from elasticjob.api.http import urllib3
from elasticjob.contract import names

PATIENCE_SECONDS = 30.0
"""How long a request is tried again: the API server learns of the pod's rights after a moment."""
DELETION_SECONDS = 120.0
POLL_SECONDS = 2.0
_ANSWER_SECONDS = 15.0
_COMPLETE = "Complete"

T = TypeVar("T")


class Api(Protocol):
    """Requests about one job. All raise ApiError."""

    def create(self, job: Mapping[str, Any]) -> None:
        """Create it."""

    def read(self) -> dict[str, Any]:
        """The job as it is now."""

    def delete(self) -> None:
        """Delete it with all that it owns."""


class HttpApi:
    """``Api`` over HTTP."""

    def __init__(self, connection: Connection, namespace: str, name: str) -> None:
        self._connection = connection
        self._jobs = f"{connection.base}/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"
        self._job = f"{self._jobs}/{name}"

    def create(self, job: Mapping[str, Any]) -> None:
        """See ``Api``."""
        self._request("POST", self._jobs, job)

    def read(self) -> dict[str, Any]:
        """See ``Api``."""
        return self._request("GET", self._job)

    def delete(self) -> None:
        """See ``Api``."""
        self._request("DELETE", self._job, {"propagationPolicy": "Foreground"})

    def _request(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        try:
            response = self._connection.pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers={"content-type": "application/json", **self._connection.headers()},
                timeout=_ANSWER_SECONDS,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"no answer from the API server: {error}") from None
        try:
            answer: dict[str, Any] = json.loads(response.data)
        except ValueError:
            answer = {"message": response.data[:500].decode("utf-8", "replace")}
        if response.status >= 400:
            if response.status == 401:
                self._connection.forget_token()
            raise from_status(response.status, str(answer.get("message", "")))
        return answer


@dataclass
class Trial:
    """One job from its creation to its end."""

    api: Api
    job: Mapping[str, Any]
    seconds: float
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], None] = print

    def run(self) -> bool:
        """Whether the job became Complete in time. Says what it waits for, and why it failed."""
        name = f"{self.job['metadata']['namespace']}/{self.job['metadata']['name']}"
        try:
            self._delete()  # one that an interrupted test has left
            with contextlib.suppress(Conflict):  # an earlier try had no answer
                self._patiently(lambda: self.api.create(self.job))
            self.say(f"ElasticJob {name} is created")
            return self._ends(name)
        except ApiError as error:
            self.say(f"the API server refused: {error}")
            return False
        finally:
            try:
                self._delete()
            except ApiError as error:
                self.say(f"{name} is not deleted: {error}")

    def _ends(self, name: str) -> bool:
        began = self.now()
        told = ""
        while True:
            status = self._patiently(self.api.read).get("status", {})
            training = _training(status)
            if training != told:
                told = training
                self.say(training)
            outcome = status.get("terminalState", "")
            if outcome == _COMPLETE:
                self.say(f"{name} is Complete after {self.now() - began:.0f} s")
                return True
            late = self.now() - began > self.seconds
            if outcome or late:
                self.say(
                    f"{name} is {outcome}" if outcome else f"{name} is not over after {self.seconds:.0f} s"
                )
                for line in _why(status):
                    self.say(line)
                return False
            self.sleep(POLL_SECONDS)

    def _delete(self) -> None:
        """Delete the job, and wait until it is gone."""
        began = self.now()
        try:
            self._patiently(self.api.delete)
            while self.now() - began < DELETION_SECONDS:
                self._patiently(self.api.read)
                self.sleep(POLL_SECONDS)
        except NotFound:
            return
        raise ApiError(f"it still exists {DELETION_SECONDS:.0f} s after its deletion")

    def _patiently(self, ask: Callable[[], T]) -> T:
        began = self.now()
        while True:
            try:
                return ask()
            except NotFound:
                raise
            except ApiError as error:
                if error.status in (400, 409, 422) or self.now() - began > PATIENCE_SECONDS:
                    raise
            self.sleep(POLL_SECONDS)


def _conditions(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for one in status.get("conditions", ()):
        yield one["type"], f"{one['type']} {one['status']}, {one['reason']}: {_line(one['message'])}"


def _training(status: Mapping[str, Any]) -> str:
    """The condition Training in one line."""
    told = dict(_conditions(status)).get("Training")
    return told or "no operator has looked at the job yet: does one serve its namespace?"


def _why(status: Mapping[str, Any]) -> Iterator[str]:
    """All that the status says about a job that has not become Complete."""
    for _, told in _conditions(status):
        yield f"  {told}"
    failure = status.get("lastFailure")
    if failure:
        where = f"pod {failure.get('podName', '?')}, exit code {failure.get('exitCode', 'unknown')}"
        yield f"  last failure: {where}: {_line(failure.get('message', ''))}"


def _line(text: str) -> str:
    return " ".join(text.split())


def main(arguments: list[str]) -> int:
    """The exit code."""
    job = json.loads(arguments[0])
    meta = job["metadata"]
    try:
        api = HttpApi(connect(), meta["namespace"], meta["name"])
    except ConfigurationError as error:
        print(error)
        return 1
    return 0 if Trial(api, job, float(arguments[1])).run() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
