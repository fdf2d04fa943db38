"""From raw timings to the numbers of the cost model, with their errors: what was measured before a run, as one value.

The prefill polynomial is fitted to relative residuals by iteratively re-weighted least squares (Huber weights) with all
coefficients >= 0, in JAX, in double precision. One shape in four is held out of the fit and tells the error on shapes
that the fit never saw.
"""

from __future__ import annotations

import json
import os
import random
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from kvshare_research.core.costing import PS_PER_US, PrefillCoefficients, prefill_ps, up_to_us
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ports import Cost

from .links import LinkModel
from .ttft import TtftCost

Point = tuple[int, int, int]  # new tokens, cached tokens, measured us
Transfer = tuple[int, int]  # bytes, measured us; 0 bytes is a bare round trip

HELD_OUT_SHARE = 0.25
KNOWN_ERROR_MAX = 0.25  # of a known calibration against this machine now; twice what idle quotes are off by
COEFFICIENT_COUNT = len(PrefillCoefficients._fields)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured of one model on one device over one kind of link; fits any cost policy that takes it.

    `standard_errors_ps` belong to the coefficients, in their order and units; 0 for one that the fit holds at 0. Errors
    are medians of |predicted - measured| / measured, of the fitted points and of those held out.
    """

    model: str = ""
    device: str = ""
    dtype: str = ""
    threads: int = 0
    link: str = ""
    coefficients: PrefillCoefficients | None = None
    standard_errors_ps: tuple[float, ...] = (0.0,) * COEFFICIENT_COUNT
    merge_ps_per_byte: int | None = None
    decode_step_ps: int | None = None
    decode_ps_per_token: int = 0
    link_model: LinkModel = field(default_factory=LinkModel)
    fitted_count: int = 0
    held_out_count: int = 0
    fit_error_ratio: float = 0.0
    held_out_error_ratio: float = 0.0
    points: tuple[Point, ...] = ()
    decode_points: tuple[Point, ...] = ()  # tokens decoded, context tokens before the first of them, us

    @classmethod
    def none(cls) -> Calibration:
        """Nothing was measured: every policy keeps its own figures."""
        return cls()

    @property
    def name(self) -> str:
        """A file name that is equal for equal (model, device, dtype, threads, link)."""
        return cache_name(model=self.model, device=self.device, dtype=self.dtype, threads=self.threads, link=self.link)

    def prefill_us(self, new_tokens: int, cached_tokens: int) -> int:
        """Predicted time of a prefill, rounded up; 0 where nothing was measured."""
        if self.coefficients is None:
            return 0
        return up_to_us(prefill_ps(self.coefficients, new_tokens, cached_tokens))

    def still_holds(self, points: Sequence[Point]) -> bool:
        """Whether prefills measured now are predicted within `KNOWN_ERROR_MAX` (median); False if nothing is known."""
        return self.coefficients is not None and median_error(self.coefficients, points) <= KNOWN_ERROR_MAX

    def applied_to(self, cost: Cost) -> Cost:
        """`cost` with measured coefficients; as it is where nothing was measured or it takes none."""
        return replace(cost, **self.measured()) if isinstance(cost, TtftCost) else cost

    def measured(self) -> dict[str, Any]:
        """The fields of `TtftCost` that were measured, by name."""
        found: dict[str, Any] = {} if self.coefficients is None else self.coefficients._asdict()
        if self.merge_ps_per_byte is not None:
            found["merge_ps_per_byte"] = self.merge_ps_per_byte
        if self.decode_step_ps is not None:
            found |= {"decode_step_ps": self.decode_step_ps, "decode_ps_per_token": self.decode_ps_per_token}
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` gives an equal calibration."""
        return {
            "model": self.model,
            "device": self.device,
            "dtype": self.dtype,
            "threads": self.threads,
            "link": self.link,
            "coefficients": None if self.coefficients is None else self.coefficients._asdict(),
            "standard_errors_ps": list(self.standard_errors_ps),
            "merge_ps_per_byte": self.merge_ps_per_byte,
            "decode_step_ps": self.decode_step_ps,
            "decode_ps_per_token": self.decode_ps_per_token,
            "link_model": {name: getattr(self.link_model, name) for name in LinkModel.__dataclass_fields__},
            "fitted_count": self.fitted_count,
            "held_out_count": self.held_out_count,
            "fit_error_ratio": self.fit_error_ratio,
            "held_out_error_ratio": self.held_out_error_ratio,
            "points": [list(point) for point in self.points],
            "decode_points": [list(point) for point in self.decode_points],
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Calibration:
        """The calibration that `to_dict` wrote; ConfigError if it is none."""
        try:
            values = dict(given)
            if values["coefficients"] is not None:
                values["coefficients"] = PrefillCoefficients(**values["coefficients"])
            values["standard_errors_ps"] = tuple(values["standard_errors_ps"])
            values["link_model"] = LinkModel(**values["link_model"])
            for name in ("points", "decode_points"):
                values[name] = tuple((int(s), int(k), int(us)) for s, k, us in values.get(name, ()))
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"not a calibration ({error}); remove it to measure again") from None


def cache_name(*, model: str, device: str, dtype: str, threads: int, link: str) -> str:
    """The file name of the calibration of this model (its fingerprint), device, dtype, thread count and link."""
    parts = (model, device, dtype, f"{threads}t", link)
    return "-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", part) for part in parts) + ".json"


def save(calibration: Calibration, folder: Path) -> Path:
    """`calibration` is in `folder` under its name, whole or not at all; returns where."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / calibration.name
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(calibration.to_dict(), indent=1) + "\n")
    part.replace(path)
    return path


def load(folder: Path, *, model: str, device: str, dtype: str, threads: int, link: str) -> Calibration | None:
    """The cached calibration of exactly this, None if there is none; ConfigError if the file is broken."""
    path = folder / cache_name(model=model, device=device, dtype=dtype, threads=threads, link=link)
    if not path.exists():
        return None
    try:
        found = Calibration.from_dict(json.loads(path.read_text()))
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"`{path}` is broken ({error}); remove it to measure again") from None
    same = (found.model, found.device, found.dtype, found.threads, found.link) == (model, device, dtype, threads, link)
    return found if same else None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillGrid:
    """What to measure: (new tokens, cached tokens) points, each `repeats` times."""

    points: tuple[tuple[int, int], ...]
    repeats: int

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The points as [start token, end token)."""
        return tuple((cached, cached + new) for new, cached in self.points)


def prefill_grid(
    prompt_tokens_max: int, block_tokens: int, seconds_budget: float, rough_ps_per_token: int
) -> PrefillGrid:
    """Points whose measurement takes about `seconds_budget`, from one block to the longest prompt, spread in both ways.

    New tokens double from one block on; each meets no cached tokens, and about 1/8, 3/8 and 3/4 of the longest
    prompt, in whole blocks, as far as it fits. The dearest of these are left out (down to seven) until they take at
    most .6 of the budget; then comes one prompt computed whole, as long as the rest of the budget pays for. What is
    still left goes into up to eight repeats.
    """
    if prompt_tokens_max < 2 * block_tokens:
        raise ConfigError(f"a prompt of {prompt_tokens_max} tokens is too short to calibrate blocks of {block_tokens}")
    budget_tokens = int(seconds_budget * 1e12 / max(1, rough_ps_per_token))
    longest = prompt_tokens_max // block_tokens
    lengths = [2**i for i in range(longest.bit_length()) if 2**i < longest]
    caches = sorted({share * longest // 8 for share in (0, 1, 3, 6)})
    points = [(new, cached) for new in lengths for cached in caches if new + cached <= longest]
    while len(points) > 7 and sum(new for new, _ in points) * block_tokens > 0.6 * budget_tokens:
        points.remove(max(points))
    left_blocks = budget_tokens // block_tokens - sum(new for new, _ in points)
    points.append((min(longest, max(left_blocks, 1 + max(new for new, _ in points))), 0))
    pass_tokens = sum(new for new, _ in points) * block_tokens
    return PrefillGrid(
        points=tuple((new * block_tokens, cached * block_tokens) for new, cached in points),
        repeats=max(1, min(8, budget_tokens // pass_tokens)),
    )


def calibrate(
    *,
    model: str,
    device: str,
    dtype: str,
    threads: int,
    link: str,
    points: Sequence[Point],
    transfers: Sequence[Transfer] = (),
    merges: Sequence[Transfer] = (),
    decodes: Sequence[Point] = (),
    seed: int = 0,
) -> Calibration:
    """The calibration that explains the timings; equal inputs give equal values.

    `points` are prefills, `transfers` probes of links (all links together), `merges` copies of landed bytes,
    `decodes` answers (tokens, context before them, us). One in four prefill shapes is held out by `seed` and is never
    seen by the fit.
    """
    fitted, held_out = held_out_split(points, seed)
    coefficients, errors_ps = fit_prefill(fitted)
    step_ps, ps_per_token = fit_decode(decodes)
    return Calibration(
        model=model,
        device=device,
        dtype=dtype,
        threads=threads,
        link=link,
        coefficients=coefficients,
        standard_errors_ps=errors_ps,
        merge_ps_per_byte=rate_of(merges),
        decode_step_ps=step_ps,
        decode_ps_per_token=ps_per_token,
        link_model=link_model_of(transfers, LinkModel()),
        fitted_count=len(fitted),
        held_out_count=len(held_out),
        fit_error_ratio=median_error(coefficients, fitted),
        held_out_error_ratio=median_error(coefficients, held_out),
        points=tuple(points),
        decode_points=tuple(decodes),
    )


def held_out_split(points: Sequence[Point], seed: int) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
    """(fitted, held out): whole shapes are held out, so that no repeat of one is on both sides.

    The extremes stay in the fit, since the model is used between them: the shapes with the most and the fewest tokens.
    """
    shapes = sorted({(new, cached) for new, cached, _ in points}, key=lambda shape: (sum(shape), shape))
    inner = shapes[1:-1]
    chosen = set(random.Random(seed).sample(inner, min(len(inner), max(1, int(len(shapes) * HELD_OUT_SHARE)))))
    if len(shapes) - len(chosen) < COEFFICIENT_COUNT:
        raise ConfigError(f"{len(shapes)} prefill shapes were measured, expected at least 7 to fit 5 coefficients")
    fitted = tuple(p for p in points if p[:2] not in chosen)
    return fitted, tuple(p for p in points if p[:2] in chosen)


# The fit asks for work a >= 0 of a kernel that skips what a causal mask hides (s*k + s*s/2 pairs of tokens) and b >= 0
# of one that computes it all (s*k + s*s): c3 = a + b and c4 = a/2 + b. Nothing else grows with pairs, so a few noisy
# timings cannot call the cost of tokens a cost of pairs, which would be far off for longer prompts.
FROM_FIT = ((1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (0, 0, 1, 0, 0), (0, 0, 0, 1, 1), (0, 0, 0, 0.5, 1))


def fit_prefill(points: Sequence[Point]) -> tuple[PrefillCoefficients, tuple[float, ...]]:
    """Coefficients >= 0 in ps and their standard errors, from (new tokens, cached tokens, us); c3/2 <= c4 <= c3."""
    import numpy as np

    from .robust import fit_relative

    new, cached, us = np.array(points, np.float64).T
    if us.min() <= 0:
        raise ConfigError("a prefill was timed at 0 us; the clock is too coarse to calibrate")
    back = np.array(FROM_FIT)
    columns = np.stack([np.ones_like(new), new, cached, new * cached, new * new], axis=1) @ back
    values, covariance = fit_relative(columns, us * PS_PER_US)
    errors = np.sqrt(np.maximum(np.diag(back @ covariance @ back.T), 0.0))
    return PrefillCoefficients(*(round(v) for v in back @ values)), tuple(float(e) for e in errors)


def median_error(coefficients: PrefillCoefficients, points: Sequence[Point]) -> float:
    """Median of |predicted - measured| / measured; 0 without points."""
    errors = [abs(prefill_ps(coefficients, new, cached) / PS_PER_US - us) / us for new, cached, us in points]
    return statistics.median(errors) if errors else 0.0


def fit_decode(points: Sequence[Point]) -> tuple[int | None, int]:
    """(ps a token, ps a token and token before it), both >= 0, from the medians at the least and the largest context.

    The step is None without points. Answers are short beside their contexts, so a line through two points is enough.
    """
    if not points:
        return None, 0
    by_context: dict[int, list[float]] = {}
    for count, context, us in points:
        by_context.setdefault(context + (count - 1) // 2, []).append(us * PS_PER_US / count)
    rows = [(context, statistics.median(times)) for context, times in sorted(by_context.items())]
    (near, near_ps), (far, far_ps) = rows[0], rows[-1]
    slope = max(0.0, (far_ps - near_ps) / (far - near)) if far > near else 0.0
    middle = (near_ps + far_ps) / 2 - slope * (near + far) / 2
    return max(0, round(middle)), round(slope)


def rate_of(transfers: Sequence[Transfer]) -> int | None:
    """Median ps a byte of transfers without set-up, None without transfers."""
    rates = [us * PS_PER_US / size for size, us in transfers if size > 0]
    return round(statistics.median(rates)) if rates else None


def link_model_of(transfers: Sequence[Transfer], base: LinkModel) -> LinkModel:
    """`base` with the median round trip and the median rate beyond it, as far as they were measured."""
    trips = [us for size, us in transfers if size == 0]
    rtt_us = round(statistics.median(trips)) if trips else base.rtt_us
    rate = rate_of([(size, max(0, us - rtt_us)) for size, us in transfers if size >= base.rate_bytes_min])
    return replace(base, rtt_us=rtt_us, ps_per_byte=base.ps_per_byte if rate is None else rate)
