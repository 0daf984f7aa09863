"""Bad inputs over every public name, made from the signatures: an error that names the argument, what came, the remedy.

For each public function, constructor and method there is one good call. Every argument of its signature has a kind, by
its name, and every kind has values that are wrong for it; each such value in the place of the good one is a case. Cases
run in a worker that is ended when one of them takes too long.
"""

import ast
import inspect
import json
import re
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tortures.calls import KINDS, bad_values, good_calls

_LIMIT = 10.0  # seconds of a case, of the processor's time
_WALL = 120.0  # and by the clock, on a machine that does other things
# Records that bures itself makes, and modules: nothing that users construct.
_MADE = {"Diagnostics", "Estimate", "Field", "Fit", "Info", "State", "Outcome", "Centring", "SNR", "Fits"}


def run(short: bool) -> dict[str, Any]:
    """All cases, or a few of each kind."""
    every = 12 if short else 1
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    cases, first = _number_of_cases(), 0
    while first < cases:
        for number, what, label in _worker(first, every):
            first = number + 1
            counts[what] += 1
            if what != "refused":
                wrong.append(f"{label}: {what}")
        first = first if first >= cases else _skip(first, every, cases)
    total = sum(counts.values())
    good = counts["refused"] / max(total, 1)
    return {
        "cases": total,
        "counts": {name.split(":")[0]: 0 for name in counts} | dict(_grouped(counts)),
        "share refused by name": round(good, 4),
        "wrong": wrong[:400],
        "not covered": _not_covered(),
        "holds": {
            "1,000 cases": short or total >= 1000,
            "0 hangs": counts["hang"] == 0,
            "0 crashes": counts["crash"] == 0,
            "0 silent": counts["accepted"] == 0,
            "99% refused by name": good >= 0.99,
            "every public name": not _not_covered(),
        },
    }


def _grouped(counts: Counter[str]) -> Counter[str]:
    grouped: Counter[str] = Counter()
    for name, count in counts.items():
        grouped[name.split(":")[0]] += count
    return grouped


def _skip(first: int, every: int, cases: int) -> int:
    """The worker has ended: all are done where it ended by itself."""
    return cases if first >= cases - every + 1 else first


# ---- The worker -----------------------------------------------------------------------------------------------------


def _worker(first: int, every: int) -> Iterator[tuple[int, str, str]]:
    """Number, what happened and label of each case, from the first on; one that hangs or crashes is the last."""
    command = [sys.executable, str(Path(__file__).resolve()), str(first), str(every)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    timer, hung = _watchdog(process)
    begun: tuple[int, str] | None = None
    for line in process.stdout:
        said = json.loads(line)
        timer["until"] = time.monotonic() + _WALL
        if said["begins"]:
            begun = said["number"], said["label"]
        else:
            begun = None
            yield said["number"], said["what"], said["label"]
    process.wait()
    process.stdout.close()
    timer["done"] = True
    if begun is not None:
        yield begun[0], "hang" if hung else "crash", begun[1]


def _watchdog(process: subprocess.Popen) -> tuple[dict[str, Any], list[bool]]:
    """Ends a process that says nothing for too long."""
    timer: dict[str, Any] = {"until": time.monotonic() + 3 * _WALL, "done": False}
    hung: list[bool] = []

    def watch() -> None:
        while not timer["done"] and process.poll() is None:
            if time.monotonic() > timer["until"]:
                hung.append(True)
                process.kill()
            time.sleep(0.2)

    threading.Thread(target=watch, daemon=True).start()
    return timer, hung


def _work(first: int, every: int) -> None:
    warnings.simplefilter("ignore")
    for number, (label, argument, call) in enumerate(all_cases()):
        if number < first or number % every:
            continue
        _say(number=number, label=label, begins=True)
        _say(number=number, label=label, begins=False, what=judge(argument, call))


def _say(**said: Any) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def judge(argument: str, call: Callable[[], Any]) -> str:
    """What a bad call leads to."""
    began = time.process_time()
    try:
        call()
    except ValueError as error:
        what = "refused" if names_it(argument, str(error)) else f"unclear: {str(error)[:150]}"
    except OSError as error:  # of files
        what = "refused" if names_it(argument, str(error)) else f"unclear: {str(error)[:150]}"
    except Exception as error:
        what = f"obscure: {type(error).__name__}: {str(error)[:150]}"
    else:
        what = "accepted"
    return what if time.process_time() - began < _LIMIT else "hang"


def names_it(argument: str, message: str) -> bool:
    """Whether a message names the argument, says what came, and has a remedy: a sentence after that."""
    received = re.search(
        r"but (got|it|its|was|is|there|has|one|none|returned|the|\w+\()|could not|cannot|failed", message
    )
    sentences = len(re.findall(r"[.?!](\s|$)", message))
    return bool(re.search(rf"\b{re.escape(argument)}\b", message)) and received is not None and sentences >= 2


# ---- Cases ----------------------------------------------------------------------------------------------------------


def all_cases() -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Label, argument and call of every case."""
    calls, bad = good_calls(), bad_values()
    for name, (function, good) in calls.items():
        for parameter in _parameters(function, good):
            for label, value in _wrong_for(name, parameter, bad):
                yield f"{name}({parameter.name}={label})", parameter.name, _call(function, good, parameter, value)


def _number_of_cases() -> int:
    return sum(1 for _ in all_cases())


def _call(function: Any, good: dict[str, Any], parameter: inspect.Parameter, value: Any) -> Callable[[], Any]:
    def call() -> Any:
        given = {
            key: part() if inspect.isfunction(part) and part.__name__ == "make" else part for key, part in good.items()
        }
        given |= {parameter.name: value()}
        signature = inspect.signature(function).parameters
        positional = [k for k, p in signature.items() if p.kind is p.POSITIONAL_ONLY]
        return function(*(given.pop(k) for k in positional), **given)

    return call


def _parameters(function: Any, good: dict[str, Any]) -> list[inspect.Parameter]:
    found = inspect.signature(function).parameters.values()
    named = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    more = [inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY) for k in good if k not in {p.name for p in named}]
    return named + more


def _wrong_for(name: str, parameter: inspect.Parameter, bad: dict[str, dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    kind = KINDS.get(f"{name}.{parameter.name}", KINDS.get(parameter.name))
    if kind is None:
        raise KeyError(f"the argument {parameter.name} of {name} has no kind in scripts/tortures/inputs.py")
    for label, value in bad.get(kind, {}).items():
        if label == "None" and parameter.default is None:
            continue  # nothing is given
        yield label, value


def _public() -> list[str]:
    import bures

    tree = ast.parse(Path(bures.__file__).with_suffix(".pyi").read_text())
    return [name.asname or name.name for part in tree.body if isinstance(part, ast.ImportFrom) for name in part.names]


def _not_covered() -> list[str]:
    """Public functions and classes without a good call."""
    import bures

    names = {name.split(".")[0] for name in good_calls()}
    objects = {name: getattr(bures, name) for name in _public()}
    callables = [name for name, thing in objects.items() if callable(thing) and not inspect.ismodule(thing)]
    return [name for name in callables if name not in names | _MADE]


if __name__ == "__main__":
    _work(int(sys.argv[1]), int(sys.argv[2]))
