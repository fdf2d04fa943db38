"""What a reader of a worker's log does with a message, decided on numbers alone.

A reader keeps, per worker, an incarnation and how many entries of that incarnation's log it has applied; what it
believes the worker holds is exactly the replay of those entries. `decide` never leaves that invariant and never goes
back; one heartbeat and one snapshot bring a reader up to date. All arguments are plain ints, so that the proof tool
can run this very function on symbolic values. The tables around it are in `replica.py`.
"""

from __future__ import annotations

from typing import NamedTuple

EVENT, SNAPSHOT, HEARTBEAT = range(3)  # kinds of message
IGNORE, APPLY, INSTALL, HOLD, ASK = range(5)  # what to do with one


class Decision(NamedTuple):
    """Do `what`; then (incarnation, seq) is what the reader has."""

    what: int
    reset: bool  # first forget everything known of the worker: a new incarnation has spoken
    incarnation: int
    seq: int


def decide(incarnation: int, seq: int, kind: int, message_incarnation: int, message_seq: int) -> Decision:
    """What to do with a message, for a reader that has applied `seq` entries of `incarnation`.

    `message_seq` is the number of the entry (EVENT), of the last entry that the snapshot contains (SNAPSHOT), or of
    the last entry written (HEARTBEAT). HOLD keeps an entry that came ahead of a gap; HOLD and ASK want a snapshot.
    """
    if message_incarnation < incarnation:
        return Decision(IGNORE, False, incarnation, seq)
    reset = message_incarnation > incarnation
    done = 0 if reset else seq
    if kind == EVENT and message_seq == done + 1:
        return Decision(APPLY, reset, message_incarnation, message_seq)
    if kind == SNAPSHOT and message_seq > done:
        return Decision(INSTALL, reset, message_incarnation, message_seq)
    if message_seq > done:
        return Decision(HOLD if kind == EVENT else ASK, reset, message_incarnation, done)
    return Decision(IGNORE, reset, message_incarnation, done)
