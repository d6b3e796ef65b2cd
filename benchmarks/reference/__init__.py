"""Other simulators' cases, run through pdplan's: `python -m benchmarks.reference {simdistserve,vidur} DIR`."""
