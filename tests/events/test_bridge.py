"""Our messages in the engines' format: tokens of public blocks only, and a watcher that follows us."""

from __future__ import annotations

import numpy as np

from kvshare_research.core.journal import Journal
from kvshare_research.core.messages import BlocksRemoved, BlocksStored, TierCleared
from kvshare_research.core.nouns import Chain
from kvshare_research.events.bridge import Bridge
from kvshare_research.events.frames import Batch, Cleared, Removed, Stored, decode, encode
from tests.observe.test_observe import fleet

HASHES = tuple(bytes([i]) * 16 for i in range(1, 5))
CHAIN = Chain(hashes=b"".join(HASHES), scope_ends=((0, 2), (7, 4)), block_tokens=2)
SECRET = np.array([10, 11, 12, 13, 99, 98, 97, 96], np.uint32)


def bridged() -> tuple[Bridge, Journal]:
    bridge = Bridge(2)
    bridge.seen(CHAIN, SECRET)
    return bridge, Journal(0, 1)


def test_private_tokens_never_leave() -> None:
    bridge, journal = bridged()
    public = journal.write(BlocksStored(tier=0, parent=None, hashes=HASHES[:2], scope_id=0))
    private = journal.write(BlocksStored(tier=0, parent=HASHES[1], hashes=HASHES[2:], scope_id=7))
    events = [*bridge.events(public), *bridge.events(private)]
    assert [(e.tokens, len(e.hashes)) for e in events if isinstance(e, Stored)] == [((10, 11, 12, 13), 2), ((), 2)]
    frame = decode(encode(0.0, events))
    told = {t for e in frame.events if isinstance(e, Stored) for t in e.tokens}
    assert told.isdisjoint({96, 97, 98, 99})


def test_a_public_run_with_unknown_blocks_is_split_and_stays_chained() -> None:
    bridge, journal = bridged()
    first, rest = bridge.events(journal.write(BlocksStored(tier=1, parent=None, hashes=(*HASHES[:2], b"x" * 16))))
    assert isinstance(first, Stored)
    assert isinstance(rest, Stored)
    assert (rest.parent, rest.tokens, rest.tier) == (first.hashes[-1], (), 1)


def test_a_watcher_follows_our_worker() -> None:
    bridge, journal = bridged()
    f = fleet()
    bodies = [BlocksStored(tier=0, parent=None, hashes=HASHES[:2]), BlocksRemoved(tier=0, hashes=HASHES[1:2])]
    for body in bodies:
        f.apply(0, Batch(time_s=0.0, events=bridge.events(journal.write(body))), 0.0)
    assert f.report()["held_blocks"] == [1, 0, 0]
    assert bridge.events(journal.heartbeat()) == ()
    assert bridge.events(journal.write(TierCleared(tier=None))) == (Cleared(),)
    assert isinstance(bridge.events(journal.write(bodies[1]))[0], Removed)
