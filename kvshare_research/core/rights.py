"""Who may read a block: small total functions, proved in proofs/ and run unmodified by router and worker.

Every argument is an int, a bool or a frozen row of them, so that the proof tool can run these very
functions on symbolic values. Tables of rows live in `core/directory.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

# Levels of the scope chain, widest first; a request's segments only ever move to larger numbers.
PUBLIC, GROUP, TENANT, USER, SESSION, NONE = range(6)
NOBODY = 0  # no party; real ones are numbered from 1


class Scope(Struct, frozen=True, gc=False):
    """Who a block belongs to. `party` is a group id at GROUP, else the id of the tenant, user or session."""

    level: int
    party: int


EVERYBODY = Scope(PUBLIC, NOBODY)
SEALED = Scope(NONE, NOBODY)  # the tightest scope: nobody may read it, whoever asks


class Reader(Struct, frozen=True, gc=False):
    """The authenticated identity behind a request, as its driver gave it. Ids are unique per level."""

    tenant: int
    user: int
    session: int


class Membership(Struct, frozen=True, gc=False):
    """The row (tenant, group). `grant_epoch` rises with every grant and every revocation."""

    active: bool
    grant_epoch: int
    expiry_us: int


class Ticket(NamedTuple):
    """A right to fetch, opened at `grant_epoch` for blocks whose slots were at `generation`."""

    grant_epoch: int
    generation: int
    expiry_us: int


def may_read(scope: Scope, reader: Reader, membership: Membership, now_us: int) -> bool:
    """Whether `reader` may use blocks of `scope` now. `membership` is the row (reader.tenant, scope.party)."""
    if scope.level == PUBLIC:
        return True
    if scope.party == NOBODY:
        return False
    if scope.level == GROUP:
        return membership.active and now_us < membership.expiry_us
    if scope.level == TENANT:
        return scope.party == reader.tenant
    if scope.level == USER:
        return scope.party == reader.user
    return scope.level == SESSION and scope.party == reader.session


def grant(membership: Membership, expiry_us: int) -> Membership:
    """The row after the tenant joined (or renewed) until `expiry_us`; tickets of before die."""
    return Membership(True, membership.grant_epoch + 1, expiry_us)


def revoke(membership: Membership) -> Membership:
    """The row after the tenant left; tickets of before die."""
    return Membership(False, membership.grant_epoch + 1, 0)


def open_read(
    scope: Scope, reader: Reader, membership: Membership, generation: int, now_us: int, lease_us: int
) -> Ticket | None:
    """A ticket if the read is allowed now, else None; changes nothing."""
    if may_read(scope, reader, membership, now_us):
        return Ticket(membership.grant_epoch, generation, now_us + lease_us)
    return None


def may_deliver(
    ticket: Ticket, scope: Scope, reader: Reader, membership: Membership, generation: int, now_us: int
) -> bool:
    """Whether bytes fetched under `ticket` may become readable now; any change since it was opened says no."""
    return (
        ticket.generation == generation
        and ticket.grant_epoch == membership.grant_epoch
        and now_us < ticket.expiry_us
        and may_read(scope, reader, membership, now_us)
    )


def tightens(before: Scope, after: Scope) -> bool:
    """Whether a segment of scope `after` may follow one of scope `before`: same scope, or a tighter level."""
    return after == before or after.level > before.level


def assign(before: Scope, asked: Scope, belongs: bool, tenant: int) -> Scope:
    """The scope that a segment of `tenant`'s prompt gets when its template says `asked` and the text before it has
    scope `before`: never wider than either, so that scopes only tighten along a prompt.

    `belongs` says whether `tenant` is a party to `asked`; what it may not share in, it keeps to itself. Text of two
    groups is for neither of them: only `tenant` may read it. Text of two users or sessions is for nobody.
    """
    if not belongs:
        asked = Scope(TENANT, tenant) if asked.level <= TENANT else SEALED
    if asked.level > before.level:
        return asked
    if asked == before or asked.level < before.level:
        return before
    return Scope(TENANT, tenant) if before.level == GROUP else SEALED
