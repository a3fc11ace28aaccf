"""The objects of one resource as last seen, by name and by job, with the time of the last change of each.

Two sources feed the store: the informer's lists and watch, and the responses to our own requests. A response
mostly comes before the watch event. So an older version never replaces a newer one, and a list taken before
our write does not remove its result. But a response may also come after the watch event. So it cannot bring
back an object that has been deleted in the meantime: nothing would ever remove it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Generic

from elasticjob_operator.observe.objects import T
from elasticjob_operator.observe.recent import Recent

Key = tuple[str, str]
"""(namespace, name)."""


class Store(Generic[T]):
    """See the module. ``changed`` is called for each object with news: made, changed, or removed; ``written``
    for each version that replaces an older one, news or not."""

    def __init__(
        self,
        changed: Callable[[T], None],
        clock: Callable[[], float],
        written: Callable[[T], None] | None = None,
    ) -> None:
        self._changed = changed
        self._written = written
        self._clock = clock
        self._items: dict[Key, T] = {}
        self._jobs: dict[Key, dict[str, T]] = {}
        self._put: dict[Key, float] = {}
        self._touched: dict[Key, float] = {}
        self._listed: dict[str, int] = {}
        """The version of the informer's last list, by namespace ("" for a list of all)."""
        self._gone = Recent()
        """The answer to a write of ours may be later than the watch, and brings none of these back; one that
        had only lost its label comes with a newer version."""

    def __len__(self) -> int:
        return len(self._items)

    def get(self, namespace: str, name: str) -> T | None:
        """The object, or None."""
        return self._items.get((namespace, name))

    def of_job(self, namespace: str, job: str) -> Mapping[str, T]:
        """The objects with the job's label, by name."""
        return self._jobs.get((namespace, job), {})

    def all(self) -> Iterable[T]:
        """Every object."""
        return self._items.values()

    def changed_at(self, namespace: str, name: str) -> float:
        """Monotonic time of the last change of the object that was seen, news or not."""
        return self._put.get((namespace, name), float("-inf"))

    def silent_since(self, namespace: str, name: str) -> float:
        """Monotonic time from which on its silence counts: ``changed_at``, or when it was touched since."""
        return max(self.changed_at(namespace, name), self._touched.get((namespace, name), float("-inf")))

    def touch(self, namespace: str, name: str) -> None:
        """Count its silence from now on."""
        if (namespace, name) in self._items:
            self._touched[namespace, name] = self._clock()

    def put(self, item: T, quiet: bool = False) -> None:
        """Take over a version of an object unless a newer one is here. ``quiet``: it is our own doing."""
        key = (item.namespace, item.name)
        old = self._items.get(key)
        if old is not None and (item.version, item.uid) == (old.version, old.uid):
            return
        if old is not None and item.version < old.version:
            return
        if item.version <= self._gone.version(item.uid):
            return
        if old is not None and old.uid != item.uid:
            self.remove(*key, old.uid)
        self._gone.forget(item.uid)
        self._items[key] = item
        self._put[key] = self._clock()
        if old is not None and self._written is not None:
            self._written(item)
        if old is not None and old.uid == item.uid and old.job != item.job:
            self._leave(old)
            self._changed(old)
        self._jobs.setdefault((item.namespace, item.job), {})[item.name] = item
        if not quiet and old != item:
            self._changed(item)

    def answered(self, item: T, quiet: bool = False) -> None:
        """``put`` for the answer to a request of ours. If a list that came sooner shows that the object has
        gone since, the answer is dropped: the object is not here, and no newer than the list."""
        listed = max(self._listed.get(item.namespace, 0), self._listed.get("", 0))
        if (item.namespace, item.name) in self._items or item.version > listed:
            self.put(item, quiet)

    def remove(self, namespace: str, name: str, uid: str, version: int | None = None) -> None:
        """This very object is gone, unless it is newer than ``version``; another one of its name is not."""
        key = (namespace, name)
        old = self._items.get(key)
        if old is None or old.uid != uid:
            return
        if version is not None and old.version > version:
            return
        del self._items[key]
        self._gone.add(old.uid, float("inf") if version is None else version)
        self._put.pop(key, None)
        self._touched.pop(key, None)
        self._leave(old)
        self._changed(old)

    def age(self) -> None:
        """Call it about once a minute (``Recent``)."""
        self._gone.age()

    def drop_others(self, present: Set[Key], version: int, namespace: str = "") -> None:
        """A list of everything (in this namespace) as of ``version`` had these; what is not among them has
        been deleted."""
        self._listed[namespace] = version
        others = [k for k in self._items if k not in present and namespace in ("", k[0])]
        for key in others:
            self.remove(*key, self._items[key].uid, version)

    def _leave(self, item: T) -> None:
        group = self._jobs.get((item.namespace, item.job))
        if group is not None:
            group.pop(item.name, None)
            if not group:
                del self._jobs[(item.namespace, item.job)]
