"""The search: price every engine config, choose the cheapest fleet, prove the bound, evaluate the plan."""
