"""report.html: one self-contained file with the numbers, the pictures, how they came about and what they mean."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from .content import Table


class Picture(NamedTuple):
    """A rendered figure: file stem, caption, PNG bytes."""

    stem: str
    caption: str
    png: bytes


MEANINGS = (
    ("TTFT", "Time to first token: from the router's receipt of a request to the first token at the router."),
    ("prefill", "Computing the KV of the prompt's tokens; what reuse avoids."),
    ("overlap", "Share of a prompt's tokens that other requests have too, as dialled in the workload."),
    (
        "ρ (utilisation)",
        "Arrival rate x mean idle service time of recompute_always / workers; equal for all selectors.",
    ),
    ("idle", "One request at a time, so nothing queues."),
    (
        "resident, routed, pulled",
        "Reused where they lay on the ingress node; the request went to them; they came here.",
    ),
    ("same tenant, cross tenant", "Reused tokens that were first computed for this tenant, or for another one."),
    ("95 % interval", "Bootstrap over seeds, then requests; in comparisons, over pairs of the same request."),
    ("n", "Requests behind a number. No interval is shown below 6, no p95 below 100, no p99 below 500."),
    ("measured", "Real model, real KV bytes between processes, on this machine."),
    ("emulated", "As measured, but links are slowed down on purpose to the stated delay and rate."),
    ("simulated", "The same router and workers in virtual time; no model ran."),
    ("composed", "Computed from measured parts; nothing ran as a whole."),
)

TEMPLATE = "page.html.j2"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, default=str, ensure_ascii=False)


def render_html(
    tables: Sequence[Table],
    pictures: Sequence[Picture],
    *,
    provenance: dict[str, Any],
    notices: Sequence[str] = (),
    command: str = "",
    partial: bool = False,
    drawn: bool = True,
    title: str = "Sharing KV caches between tenants and nodes",
) -> str:
    """The page. All text is escaped, pictures are inside, nothing is fetched from anywhere."""
    from jinja2 import Environment, PackageLoader

    page = Environment(loader=PackageLoader(__package__, ""), autoescape=True, trim_blocks=True).get_template(TEMPLATE)
    shown = [{"stem": p.stem, "caption": p.caption, "data": base64.b64encode(p.png).decode()} for p in pictures]
    return page.render(
        title=title,
        tables=tables,
        pictures=shown,
        notices=notices,
        command=command,
        partial=partial,
        drawn=drawn,
        meanings=MEANINGS,
        provenance=[(name, _plain(value)) for name, value in provenance.items()],
    )
