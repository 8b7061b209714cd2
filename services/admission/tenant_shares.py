"""What one tenant may have under way while others ask too."""

from __future__ import annotations

from collections import Counter

_MEMORY_MS = 10_000.0  # a tenant that has asked within this time counts as one that asks


class TenantShares:
    """A tenant has at most `share` of the requests that run at once as long as another one has
    asked within the last ten seconds, but always one. Alone it may have all. Times are ms of the
    caller's clock.

    Fair queueing alone gives the next free place to the tenant that had fewest; with a share below
    1 there is a free place already, also while one tenant asks for more than all workers can do.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._under_way: Counter[str] = Counter()
        self._latest = self._other = ("", -_MEMORY_MS)

    @property
    def limit(self) -> bool:
        """Whether a tenant's share is less than all."""
        return self._share < 1.0

    def asks(self, tenant: str, now_ms: float) -> None:
        """A request has come. Of those who ask only the latest two are kept: if there is another
        one than a tenant, it is one of these."""
        # Only then: else `_other` would be the tenant itself, and it would seem to be alone.
        if self._latest[0] != tenant:
            self._other = self._latest
        self._latest = tenant, now_ms

    def allows(self, tenant: str, at_once: float, now_ms: float) -> bool:
        """Whether one more request may run, of `at_once` that workers run, inf if unknown."""
        if not self.limit:
            return True
        other, since = self._other if self._latest[0] == tenant else self._latest
        if other == tenant or now_ms - since >= _MEMORY_MS:
            return True
        return self._under_way[tenant] < max(1.0, self._share * at_once)

    def enter(self, tenant: str) -> None:
        """A request of a tenant is under way."""
        self._under_way[tenant] += 1

    def leave(self, tenant: str) -> None:
        """It has ended."""
        self._under_way[tenant] -= 1
        if not self._under_way[tenant]:
            # Names are given by clients: none may stay.
            del self._under_way[tenant]
