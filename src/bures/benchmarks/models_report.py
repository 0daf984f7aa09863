"""Placeholder."""

from bures.benchmarks.ladder_sections import Shown


def present(results, settings):
    return Shown([], [], {})


def flat(results):
    return [entry["parameters"] for entry in results.values()]
