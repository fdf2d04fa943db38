"""The desk between arrivals and the router: collects votes, pays for releases, and says what is released.

It alone holds votes and draws noise. The router is told the released set and nothing else, so its log can be replayed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any, Final, final

from kvshare_research.core.nouns import Chain, Request
from kvshare_research.core.ports import Ballot, Disclosure, Noise
from kvshare_research.guard.disclosing import Offer

from .ledger import BudgetSpent, Ledger

OFFERS_MAX: Final = 1 << 17  # prefixes whose chains are remembered; what is released was voted for, so it is among them


@final
class Desk:
    """Runs one disclosure policy. `released` changes only in `advance`; `counters` say what was refused or clipped."""

    def __init__(
        self,
        policy: Disclosure,
        noise: Noise,
        ledger: Ledger | None,
        *,
        keep_releases: int | None = None,
        now_us: int = 0,
    ) -> None:
        """A name is kept for `keep_releases` charged releases after its last (None: for good): an online mechanism is
        charged once a horizon, and chooses a name once in it. Without a ledger, what costs epsilon is refused."""
        self.policy = policy
        self.ledger = ledger
        self.released: frozenset[bytes] = frozenset()
        self.closed_periods = 0
        self.counters: Counter[str] = Counter()
        self._noise = noise
        self._state: Any = policy.initial_state()
        self._keep_releases = keep_releases
        self._released_at: dict[bytes, int] = {}
        self._releases = 0
        self._offers: OrderedDict[bytes, Offer] = OrderedDict()
        self._chains: dict[bytes, Chain] = {}  # of what is released: no flood of other prefixes takes that back
        self._due_us = now_us + policy.period_us

    def prefixes(self) -> tuple[Chain, ...]:
        """The released set as chains, for the router; one that was forgotten is counted and left out."""
        self.counters["forgotten_prefixes"] += len(self.released) - len(self._chains)
        return tuple(self._chains[name] for name in sorted(self._chains))

    def awaited(self) -> frozenset[bytes]:
        """What may be released without being asked for again; where each request releases, nothing."""
        candidates = getattr(self._state, "candidates", None)
        return frozenset(candidates()) if candidates is not None and self.policy.period_us else frozenset()

    def spent(self) -> str:
        """What has been spent so far, with its unit, in words."""
        if not self.policy.is_private:
            return f"epsilon infinite per {self.policy.unit}: no noise"
        return "epsilon 0: nothing is released" if self.ledger is None else str(self.ledger.spent)

    def vote(self, offer: Offer | None, request: Request) -> None:
        """The request's unit votes for what it could share; a request without a known unit or tenant does not vote."""
        if offer is None:
            return
        unit_id = request.tenant_id if self.policy.unit == "tenant" else request.user_id
        if unit_id <= 0 or request.tenant_id <= 0:  # users of no tenant would each count as one of their own
            self.counters["unknown_unit"] += 1
            return
        for name in offer.names:
            self._offers[name] = offer
            self._offers.move_to_end(name)
        while len(self._offers) > OFFERS_MAX:
            self._offers.popitem(last=False)
        ballot = Ballot(unit_id=unit_id, names=offer.names, blocks=offer.blocks, tenant_id=request.tenant_id)
        self._state = self.policy.observe(self._state, ballot)

    def advance(self, now_us: int) -> bool:
        """Every release due by now has happened; whether the released set is another one."""
        before = self.released
        if self.policy.period_us == 0:
            self._release()
        while self.policy.period_us and now_us >= self._due_us:
            self._due_us += self.policy.period_us
            self._release()
        return self.released != before

    def _release(self) -> None:
        self.closed_periods += 1
        self.counters["clipped_votes"] += getattr(self._state, "clipped", 0)
        if self._state is not None and hasattr(self._state, "clipped"):
            self._state.clipped = 0
        charge = self.policy.charge(self._state)
        if charge is not None:
            try:
                if self.ledger is None:
                    raise BudgetSpent("no ledger")
                self.ledger.spend(charge)
            except BudgetSpent:
                self.counters["refused_releases"] += 1
                self._state = self.policy.initial_state()  # votes of a period that cannot be paid for are forgotten
                return
        self._state, new = self.policy.release(self._state, self._noise)
        self._releases += charge is not None
        self._released_at.update(dict.fromkeys(new, self._releases))
        if self._keep_releases is not None:
            oldest = self._releases - self._keep_releases
            self._released_at = {n: at for n, at in self._released_at.items() if at > oldest}
        self.released = frozenset(self._released_at)
        found = {n: o.prefix(n) for n in self.released - self._chains.keys() if (o := self._offers.get(n)) is not None}
        self._chains = found | {n: chain for n, chain in self._chains.items() if n in self.released}
