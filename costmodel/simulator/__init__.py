"""Event-driven simulation of serving fleets: every request of a trace through queues, steps, KV blocks and links.

`run.simulate(trace, fleet) -> Result` is the one entry (`run.prepare` compiles it beforehand); `fleet` has what it
takes besides a `workload.Trace`, and `metrics` what its result means.
"""
