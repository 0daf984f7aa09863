"""The paper's experiments, one module each; run by `bures reproduce`, read by `bures report`."""
