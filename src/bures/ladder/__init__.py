"""From a target to draws that can be trusted: rungs from a Gaussian to NUTS, each judged; the first that passes."""

from bures.ladder.climb import sample as sample
