"""The traps and the harmless targets of `bench honesty`, by every family: what a fit says, and what is true.

False comfort is a fit that misses more than 2% of the mass, is called close or usable, and does not name other modes. A
false warning is one of a fit that is right.
"""

import json
import os
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

    began, counts, false = time.monotonic(), {name: Counter() for name in _FAMILIES}, []
    settings = dict(SETTINGS, seeds=1)
    names = list(CASES)[:: 40 if short else 1]
    for name in names:
        if time.monotonic() - began > 60 * _MINUTES:
            break
        case = CASES[name].make()
        exact, log_p = draw_exactly(case, settings["num_draws"])
        for family in _FAMILIES[:1] if short else _FAMILIES:
            found = fit_and_judge(case, exact, log_p, 0, settings, _maker(family))
            kind = _kind(found)
            counts[family][kind] += 1
            if kind == "false comfort" or found["outcome"] == "FAILED":
                kept = {key: found.get(key) for key in ("outcome", "missed")}
                false.append({"target": name, "family": family} | kept)
            sys.stderr.write(json.dumps({"target": name, "family": family, "kind": kind}) + "\n")
    total = sum(sum(each.values()) for each in counts.values())
    comfort = sum(each["false comfort"] for each in counts.values())
    right = sum(each["right"] + each["false warning"] for each in counts.values())
    warned = sum(each["false warning"] for each in counts.values())
    return {
        "fits": total,
        "targets": len(names),
        "counts": {name: dict(each) for name, each in counts.items()},
        "rate of false comfort": round(comfort / max(total, 1), 4),
        "rate of false warnings among right fits": round(warned / max(right, 1), 4),
        "false comforts": false[:20],
        "holds": {
            "300 fits": short or total >= 300,
            "0 failures": not any(f["outcome"] == "FAILED" for f in false),
            "false comfort at most 2%": comfort <= 0.02 * total,
        },
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
