"""Changing the shipping rules on purpose: each theorem must notice the mistake that it is there to exclude."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from types import FunctionType, ModuleType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """`function` of `module` with `old` replaced by `new` must make `theorem` fail; `story` says what goes wrong."""

    theorem: str
    module: str
    function: str
    old: str
    new: str
    story: str

    @property
    def id(self) -> str:
        return f"{self.theorem}: {self.story}"


def function_tree(module: ModuleType, name: str) -> ast.FunctionDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(attrgetter(name)(module))))
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    return function


@contextmanager
def replaced(module: ModuleType, name: str, tree: ast.FunctionDef) -> Iterator[None]:
    """While the context lasts, `module.name` (a function, or `Class.method`) and every import of it elsewhere is the
    function of `tree`."""
    before = attrgetter(name)(module)
    code = compile(ast.fix_missing_locations(ast.Module([tree], [])), f"<mutant of {name}>", "exec")
    made: dict[str, Any] = {}
    exec(code, vars(module), made)
    owner, _, last = name.rpartition(".")
    after = made[last]
    assert isinstance(after, FunctionType)
    holders: list[Any] = [getattr(module, owner)] if owner else [
        m for key, m in list(sys.modules.items())
        if key.startswith(("kvshare_research", "proofs")) and getattr(m, name, None) is before
    ]  # fmt: skip
    for holder in holders:
        setattr(holder, last, after)
    try:
        yield
    finally:
        for holder in holders:
            setattr(holder, last, before)


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """While the context lasts the mistake is in the code; raises ValueError if its text is not found exactly once."""
    module = importlib.import_module(mutant.module)
    source = textwrap.dedent(inspect.getsource(attrgetter(mutant.function)(module)))
    if source.count(mutant.old) != 1:
        raise ValueError(f"`{mutant.old}` occurs {source.count(mutant.old)} times in {mutant.function}, expected once")
    tree = ast.parse(source.replace(mutant.old, mutant.new)).body[0]
    assert isinstance(tree, ast.FunctionDef)
    with replaced(module, mutant.function, tree):
        yield


PACKAGES = {"namespace": "guard", "disclosing": "guard", "balance": "privacy", "apart": "disclosure"}


def _mutant(theorem: str, where: str, old: str, new: str, story: str) -> Mutant:
    module, function = where.split(".", 1)
    package = f"kvshare_research.{PACKAGES.get(module, 'core')}"
    return Mutant(theorem=theorem, module=f"{package}.{module}", function=function, old=old, new=new, story=story)


NAMED = (
    _mutant("INV", "account.admit", "grown.used <= account.limit and _sound(after)", "grown.used <= account.limit",
            "a guarantee is promised that does not fit"),
    _mutant("I2", "account._sound", "node.used <= node.capacity and ", "", "more blocks are in use than there are"),
    _mutant("I3", "account.may_evict", "victim.used - count >= victim.reserved", "victim.used >= victim.reserved",
            "a tenant at its reservation loses a block"),
    _mutant("I4", "account.may_evict", "victim.priority <= admitter.priority", "victim.priority >= admitter.priority",
            "a low class evicts a high one"),
    _mutant("I5", "account.admit", "grown.used <= account.limit", "account.used <= account.limit",
            "one block more than the limit"),
    _mutant("I6", "account.may_evict", "victim.priority <= admitter.priority", "victim.priority < admitter.priority",
            "a tenant below its reservation starves beside borrowers of its own class"),
    _mutant("I9", "account.admit_evicting", "used=victim.used - count", "used=victim.used - 2 * count",
            "two blocks go for one"),
    _mutant("I10", "account.may_evict", "victim.used - count >= victim.pinned", "victim.used >= victim.pinned",
            "a pinned block is evicted"),
    _mutant("COUNT", "account.release", "used=account.used - count", "used=account.used - min(count, 1)",
            "many blocks are released as one"),
    _mutant("XFER", "account.unpin", "pinned=account.pinned - count", "pinned=account.pinned - count + 1",
            "an aborted transfer leaves a pin"),
    _mutant("UNB", "account.may_evict", "victim.used - count >= victim.reserved", "victim.used >= victim.reserved",
            "a tenant at its reservation loses a block"),
    _mutant("LIVE", "account.admit", "if count >= 0 and", "if count == 0 and", "a guard that refuses everything"),
    _mutant("PLAN", "account.may_replace_own", "count <= account.used - account.pinned",
            "count < account.used - account.pinned", "the last block of its own is never given up"),
    _mutant("READ-LIVE", "rights.may_deliver", "now_us < ticket.expiry_us", "now_us > ticket.expiry_us",
            "a fetch within its lease is dropped"),
    _mutant("I1", "rights.may_read", "membership.active and now_us < membership.expiry_us", "membership.active",
            "a grant that has run out still reads"),
    _mutant("I7", "rights.revoke", "membership.grant_epoch + 1", "membership.grant_epoch",
            "a ticket from before a revocation and a new grant still delivers"),
    _mutant("I7D", "rights.may_deliver", "ticket.grant_epoch == membership.grant_epoch", "True",
            "a tenant that was granted again uses what it asked for before it was revoked"),
    _mutant("CUT-OFF", "rights.may_deliver", "ticket.grant_epoch == membership.grant_epoch", "True",
            "a member again takes what a node that never heard of its revocation sends"),
    _mutant("SCOPE", "rights.assign", "if asked.level > before.level:", "if asked.level != before.level:",
            "public text after private text is shared with everybody"),
    _mutant("SHARE", "rights.assign", "Scope(TENANT, tenant) if before.level == GROUP else SEALED", "before",
            "text of a second group is shared with the first"),
    _mutant("SHARD", "rights.assign", "if asked.level > before.level:", "if asked.level >= 0:",
            "in a strict partition a public segment is shared"),
    _mutant("JUDGE", "judging.cut", "block_count=readable_blocks", "block_count=run.block_count",
            "what was matched passes without being readable"),
    _mutant("JUDGE-N", "judging.further", "return end, None", "return end + 1, None",
            "the first block of the next scope passes with the last readable one"),
    _mutant("POLICY", "serving.Serving.ask", " or ticket is None", "", "a holder sends what it gave no ticket for"),
    _mutant("POLICY", "fetching.Fetching.land", "complete and self._deliverable(fetch, event, directory, now_us)",
            "complete", "what has landed is used unasked"),
    _mutant("POLICY", "worker.Worker._resident_of", "if block.scope_id != scope_id:", "if scope_id is None:",
            "a block of a second scope is used without its right"),
    _mutant("POLICY", "ledger.Ledger._give_up", "not step.ok or ", "", "a victim is let go against the rule"),
    _mutant("PROMOTE", "disclosing.widened", "if moved < segment.token_count:", "if moved < 0:",
            "what lies behind the released front of a segment is lost"),
    _mutant("PROMOTE-N", "disclosing.moved_tokens", "level != TENANT", "level < TENANT",
            "a user's own text is shared with its prefix"),
    _mutant("DEMOTE", "disclosing.widened", "token_count - at)", "token_count - at + 1)",
            "a token stays shared after the demotion"),
    _mutant("ALONE", "apart.apart", "min(largest, 1)", "largest", "users of one tenant publish its prefixes"),
    _mutant("EPS", "balance.settle", "return Settled(False, spent, budget - spent)",
            "return Settled(False, after, budget - after)", "a refusal costs budget"),
    _mutant("C9", "costing.paced", "coefficients.c3_ps_per_token2 * pace_permille // 1000",
            "coefficients.c3_ps_per_token2 // 1000", "a slow node is quoted as if it attended at full pace"),
    _mutant("C10", "costing.decode_ps", "steps * (steps - 1) // 2", "steps * steps // 2",
            "a token is counted before it is decoded"),
    _mutant("C11", "costing.priced_us", "ttft + prefill *", "ttft - prefill *", "holding others up is rewarded"),
    _mutant("C11", "costing.priced_us", " * held_up_requests", "", "a request that holds up nobody pays"),
    _mutant("C11", "costing.priced_us", " // 1000", "", "a thousandth weighs as much as a whole"),
    _mutant("NI-A", "account.admit", "grown.used <= account.limit and _sound(after)",
            "grown.used <= account.limit and after.used < after.capacity and _sound(after)",
            "whether the last block is given depends on the others"),
    _mutant("NI-A2", "account.admit", "grown.used <= account.limit and ", "",
            "beyond its limit a tenant feels the others"),
    _mutant("NI-E", "account.may_evict", "victim.used - count >= victim.reserved", "victim.used >= victim.reserved",
            "another tenant's demand costs B a block"),
    _mutant("NI-R", "rights.may_read", "return scope.party == reader.tenant", "return True",
            "a hit tells B what another tenant keeps to itself"),
    _mutant("I8", "namespace.framed", "tag + length + body", "tag + body",
            "('m', '1x') and ('m1', 'x') are one namespace"),
    _mutant("IDX", "protocol.decide", "message_seq == done + 1", "message_seq > done",
            "an entry is applied over a gap"),
    _mutant("IDX-CONV", "protocol.decide", "message_seq > done:\n        return Decision(HOLD",
            "message_seq > done + 1:\n        return Decision(HOLD", "the last entry, lost, is never noticed"),
    _mutant("C0", "costing.fetch_ps", "moved_bytes <= 0", "moved_bytes < 0", "moving nothing is charged a round trip"),
    _mutant("C1", "costing.better", "candidate.ttft_us < best.ttft_us", "candidate.ttft_us > best.ttft_us",
            "the slowest way is chosen"),
    _mutant("C2", "costing.better", "return candidate if candidate.source < best.source else best", "return candidate",
            "the choice depends on the order of rows"),
    _mutant("C3", "costing.setup_ps", "+ inflight_bytes", "- inflight_bytes", "a busy link is quoted as faster"),
    _mutant("C4", "splitting.next_finish_ps", "(block_count + 1)", "block_count",
            "a block goes where it arrives later"),
    _mutant("C5", "splitting.finish_ps", "block_count * per_block_ps", "2 * block_count * per_block_ps",
            "the split ends blocks later than it could"),
    _mutant("C6", "costing.prefill_ps", "* new_tokens * cached_tokens", "* new_tokens * new_tokens",
            "part of a prefix is fetched where all or nothing is better"),
    _mutant("C7", "costing.better", "candidate.ttft_us < best.ttft_us", "candidate.ttft_us > best.ttft_us",
            "good estimates lead to the worse way"),
    _mutant("C8", "splitting.meet_ps", "max(computed_ps, fetched_ps)", "min(computed_ps, fetched_ps)",
            "both are said to be done when one is"),
    _mutant("IDX-LIVE", "protocol.decide", "kind == EVENT and message_seq == done + 1", "False",
            "entries are never applied"),
)  # fmt: skip
# Theorems without a named mutant state no rule that could be changed: sums, impossibilities and leaks.
WITHOUT = ("SUM", "CLASH", "LEAK-1", "LEAK-2", "LEAK-3", "C3x", "PROMOTE-KEY")
