"""The traps and the harmless targets of `bench honesty`, by every family: what a fit says, and what is true.

False comfort is a fit that misses more than 2% of the mass, is called close or usable, and does not name other modes. A
false warning is one of a fit that is right. Both are counted by family, false comfort over all fits and over the traps.
"""

import json
import os
import random
import sys
import time
from collections import Counter
from typing import Any

_FAMILIES = ("default", "MeanField", "LowRank", "Mixture")
_MINUTES = float(os.environ.get("TORTURE_MINUTES", "120"))  # after which what was done is counted


def run(short: bool) -> dict[str, Any]:
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)  # as the command line does
    try:
        return _run(short)
    finally:
        jax.config.update("jax_enable_x64", before)


def _run(short: bool) -> dict[str, Any]:
    from bures.benchmarks.honesty import SETTINGS, draw_exactly, fit_and_judge
    from bures.benchmarks.honesty_targets import CASES

    began, false = time.monotonic(), []
    counts = {name: {"traps": Counter(), "harmless": Counter()} for name in _FAMILIES}
    settings = dict(SETTINGS, seeds=1)
    names = list(CASES)
    random.Random(0).shuffle(names)  # what is done when the time is over is a fair part of the list
    names = names[:: 40 if short else 1]
    for name in names:
        if time.monotonic() - began > 60 * _MINUTES:
            break
        case, list_ = CASES[name].make(), "harmless" if CASES[name].harmless else "traps"
        exact, log_p = draw_exactly(case, settings["num_draws"])
        for family in _FAMILIES[:1] if short else _FAMILIES:
            found = fit_and_judge(case, exact, log_p, 0, settings, _maker(family))
            kind = _kind(found)
            counts[family][list_][kind] += 1
            if kind in ("false comfort", "failed"):
                kept = {key: found.get(key) for key in ("outcome", "missed")}
                false.append({"target": name, "family": family} | kept)
            line = {"target": name, "list": list_, "family": family, "kind": kind, "missed": found.get("missed")}
            sys.stderr.write(json.dumps(line) + "\n")
    by_family = {name: _shares(each) for name, each in counts.items() if any(each.values())}
    every = {part: sum((each[part] for each in counts.values()), Counter()) for part in ("traps", "harmless")}
    whole = _shares(every)
    return {
        "targets": len(names),
        "all": whole,
        "families": by_family,
        "false comforts": false[:40],
        "holds": {
            "300 fits": short or whole["fits"] >= 300,
            "0 failures": not any(each["outcome"] == "FAILED" for each in false),
            "false comfort at most 2% of all fits": whole["false comforts"] <= 0.02 * whole["fits"],
            "false comfort at most 2% of the traps": whole["false comforts on traps"] <= 0.02 * whole["traps"],
            "false warnings at most 10% of the right fits": short
            or whole["false warnings"] <= 0.1 * max(whole["right"], 1),
        },
    }


def _shares(counts: dict[str, Counter]) -> dict[str, Any]:
    """The counts of both lists together, with the rates of false comfort and of false warnings."""
    both, traps = counts["traps"] + counts["harmless"], counts["traps"]
    right = both["right"] + both["false warning"]
    return {
        "fits": both.total(),
        "right": right,
        "warned rightly": both["warned"],
        "refused": both["refused"],
        "failed": both["failed"],
        "false comforts": both["false comfort"],
        "of all fits": round(both["false comfort"] / max(both.total(), 1), 4),
        "traps": traps.total(),
        "false comforts on traps": traps["false comfort"],
        "of the traps": round(traps["false comfort"] / max(traps.total(), 1), 4),
        "false warnings": both["false warning"],
        "of the right fits": round(both["false warning"] / max(right, 1), 4),
    }


def _kind(found: dict[str, Any]) -> str:
    if found["outcome"] in ("REFUSED", "FAILED"):
        return found["outcome"].lower()
    if found["right"]:
        return "false warning" if found["warned"] else "right"
    return "false comfort" if found["false"] else "warned"


def _maker(family: str) -> Any:
    import bures

    def make(target: Any, key: Any) -> Any:
        if family == "Mixture" and target.dim > 100:
            return bures.fit(target, key=key, progress=False)
        options = {} if family == "default" else {"family": getattr(bures, family)()}
        return bures.fit(target, key=key, progress=False, **options)

    return make
