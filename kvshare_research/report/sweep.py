"""One report over all runs of a sweep: `python -m kvshare_research.report.sweep FOLDER` writes `FOLDER/sweep`.

Runs that differ in the seed only become one row, with the interval that their seeds give; every other setting that
differs becomes a label.
"""

from __future__ import annotations

import shlex
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvshare_research.core.errors import ConfigError, KvShareError
from kvshare_research.metrics.records import CaseResult, load_results

from .artefacts import PARTIAL, RANDOM_WEIGHTS, RESULTS, has_random_weights, show, write
from .remarks import LINES_LEFT_OUT
from .text import in_order

FOLDER = "sweep"
TARGET = "_target_"
LABELLED = ("selector", "tenancy", "link", "workload")  # groups whose choice every case names already
LEFT_OUT = ("seed", "name", "output_root", "cache_root", "force", "debug", "plots", "study", "data_root")


def sweep(folder: Path) -> Path:
    """One report of all complete runs below `folder`, in its folder `sweep`; ConfigError if none, or two alike."""
    paths = [p for p in sorted(folder.rglob(RESULTS)) if p.parent.name != FOLDER and PARTIAL not in p.parent.name]
    files = [load_results(path) for path in paths]
    if not files:
        raise ConfigError(f"{folder}: no run has left a {RESULTS} there; give the folder of a sweep")
    configs = [dict(file.provenance.get("config", {})) for file in files]
    cases: list[CaseResult] = []
    seen: dict[tuple[Any, ...], Path] = {}
    for path, file, config, labels in zip(paths, files, configs, differences(configs), strict=True):
        for case in file.cases:
            case = replace(case, seed=case.seed + int(config.get("seed", 0)), extra=(*case.extra, *labels))
            other = seen.setdefault((case.key, case.rate_per_s, case.seed), path)
            if other is not path:
                raise ConfigError(f"{path.parent} and {other.parent} hold the same case; leave one of them out")
            cases.append(case)
    cases.sort(key=lambda case: (case.selector, in_order(case.extra), case.seed))  # folders have no order
    random_weights = any(has_random_weights(file.provenance) for file in files)
    provenance: dict[str, Any] = {"runs": [str(path.parent) for path in paths], RANDOM_WEIGHTS: random_weights}
    lines = {
        f"{name} in {path.parent.name}": found
        for path, file in zip(paths, files, strict=True)
        for name, found in (file.provenance.get("notes") or {}).items()
        if name.startswith(LINES_LEFT_OUT)
    }
    if lines:
        provenance["notes"] = lines
    command = shlex.join(["python", "-m", "kvshare_research.report.sweep", str(folder)])
    return write(cases, provenance, folder / FOLDER, command)


def differences(configs: Sequence[Mapping[str, Any]]) -> list[tuple[tuple[str, str], ...]]:
    """For each configuration, (key, value) of what tells it from the others and no case names, sorted."""
    found: list[dict[str, str]] = [{} for _ in configs]
    for group in sorted({key for config in configs for key in config} - set(LEFT_OUT)):
        parts = [_flat(config.get(group), group) for config in configs]
        targets = [str(part.get(f"{group}.{TARGET}", "")) for part in parts]
        if group not in LABELLED and len(set(targets)) > 1:
            for labels, target in zip(found, targets, strict=True):
                labels[group] = target.split(".")[-2] if "." in target else target
        alike: dict[str, list[int]] = defaultdict(list)
        for i, target in enumerate(targets):
            alike[target].append(i)
        for rows in alike.values():
            for key in sorted({key for i in rows for key in parts[i]} - {f"{group}.{TARGET}"}):
                if len({repr(parts[i].get(key)) for i in rows}) > 1:
                    for i in rows:
                        found[i][key] = str(parts[i].get(key))
    return [tuple(sorted(labels.items())) for labels in found]


def _flat(value: Any, path: str) -> dict[str, Any]:
    """The leaves of nested mappings by their dotted path."""
    if not isinstance(value, Mapping):
        return {path: value}
    return {key: leaf for name, inner in value.items() for key, leaf in _flat(inner, f"{path}.{name}").items()}


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 if the report is written, 2 and one line if there is nothing to report."""
    if {"--help", "-h"} & set(arguments):
        print("python -m kvshare_research.report.sweep FOLDER: one report of all runs below FOLDER, in FOLDER/sweep")
        return 0
    try:
        if len(arguments) != 1:
            raise ConfigError(f"given {len(arguments)} arguments, expected one: the folder of a sweep")
        show(sweep(Path(arguments[0])))
    except KvShareError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
