"""Plan -> deployment files that run what was evaluated: described, checked, rendered, written whole."""
