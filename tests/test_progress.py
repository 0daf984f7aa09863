"""The progress bar: in a terminal, in a notebook, or not at all."""

import sys
import types

import jax
import numpy as np

import bures
from bures.fitting import progress


class Screen:
    encoding = "utf-8"

    def __init__(self, terminal):
        self.text, self.terminal = "", terminal

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def run(monkeypatch, terminal, wanted):
    screen = Screen(terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    bures.fit(bures.models.gaussian(2), key=jax.random.key(0), progress=wanted)
    return screen.text


def test_a_terminal_has_a_line(monkeypatch):
    text = run(monkeypatch, True, None)
    assert text.startswith("\rfit ") and text.rstrip().endswith(" s") and "nESS" in text and text.count("\n") == 1


def test_a_file_has_nothing_unless_asked(monkeypatch):
    assert run(monkeypatch, False, None) == ""
    assert run(monkeypatch, True, False) == ""
    assert "steps" in run(monkeypatch, False, True)


def test_a_notebook_has_a_bar_that_is_redrawn(monkeypatch):
    shown = []

    class Handle:
        def update(self, bundle, raw):
            shown.append(bundle)

    def display(bundle, raw, display_id):
        shown.append(bundle)
        return Handle()

    monkeypatch.setattr(progress, "notebook_display", lambda: display)
    assert run(monkeypatch, False, None) == ""
    assert len(shown) >= 2 and '<progress value="1.000"' in shown[-1]["text/html"]
    assert "nESS" in shown[-1]["text/html"] and shown[-1]["text/plain"].startswith("fit: ")


def test_a_bar_ends_when_a_fit_is_interrupted(monkeypatch):
    screen = Screen(True)
    monkeypatch.setattr(sys, "stderr", screen)
    trace = types.SimpleNamespace(bound=np.array([1.0]), ness=np.array([0.5]))
    try:
        with progress.progress_bar(None, 10, 0) as report:
            report(4, trace)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert screen.text.endswith("\n") and "4/4 steps  bound 1.000  nESS 50.0%" in screen.text
