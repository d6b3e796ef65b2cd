"""Plan -> deployment files that run what was evaluated: described, rendered, parsed back, linted, written whole."""
