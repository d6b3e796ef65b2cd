"""A fleet as the solver chose it: its pools in motion, the latencies and attainment they give, the plan it makes."""
