"""What a fleet can be asked: a request that no node could be asked, or that is there twice, is told to its maker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Chain, Request


@dataclass(slots=True, kw_only=True)
class Entrance:
    """The way into one fleet, for one run: it remembers the ids that went in."""

    node_count: int
    _seen: set[int] = field(default_factory=set)

    def check(self, request: Request) -> None:
        """The request may go in, and is remembered; ConfigError for an ingress or executor that is no node of this
        fleet, and for an id that another request had."""
        for name, node in (("ingress", request.ingress), ("executor", request.executor)):
            if node is not None and not 0 <= node < self.node_count:
                raise ConfigError(
                    f"request {request.request_id}: `{name}` is `{node}`, expected a node of the fleet, "
                    f"0 to {self.node_count - 1}"
                )
        if request.request_id in self._seen:
            raise ConfigError(f"request id `{request.request_id}` is used twice, expected another for every request")
        self._seen.add(request.request_id)

    def checked(self, arrivals: Iterable[tuple[Request, Chain]]) -> Iterator[tuple[Request, Chain]]:
        """The same arrivals, each checked as it is read."""
        for request, chain in arrivals:
            self.check(request)
            yield request, chain
