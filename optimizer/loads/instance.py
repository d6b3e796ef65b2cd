"""An instance of the search: the problem, its flows and the tables of the cost model, computed once and passed on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel.host import EngineOverhead
from search_spaces.enumeration import Enumeration, enumerate_shapes
from search_spaces.problem import Problem

from .flows import Flows, make_flows
from .tables import Tables, build_tables


@dataclass(frozen=True, slots=True)
class Instance:
    """Everything that the load matrix is computed from."""

    problem: Problem
    flows: Flows
    enumeration: Enumeration
    tables: Tables
    overhead: EngineOverhead


def make_instance(problem: Problem, overhead: EngineOverhead) -> Instance:
    """Enumerate the feasible engine shapes and evaluate the cost model for each of them and every flow."""
    flows = make_flows(problem)
    enumeration = enumerate_shapes(problem)
    tables = build_tables(problem, flows, enumeration.shapes, overhead)
    return Instance(problem, flows, enumeration, tables, overhead)


def at_volume(instance: Instance, volume: float) -> Instance:
    """The same instance with every rate multiplied by `volume`."""
    return replace(instance, flows=replace(instance.flows, rate=instance.flows.rate * volume))
