"""What the page of a plan shows, section by section, top to bottom: texts, tables and drawings, nothing computed."""

from __future__ import annotations

from dataclasses import dataclass

from .deployment_card import DeploymentCard
from .document import Chart, Table
from .drawing import FleetDiagram
from .glossary import WORDS
from .sensitivity_section import SensitivityView
from .slo_section import SloCheck
from .sources import SourceRow

Facts = tuple[tuple[str, str], ...]
"""Names and their values."""


@dataclass(frozen=True, slots=True)
class Kpi:
    """A figure of the verdict: value, what it is, and whether it is good news."""

    value: str
    note: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class LeadLine:
    """A sentence below the verdict, what it is about in a word or two, and whether it is good news."""

    topic: str
    text: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class AnswerSection:
    """The verdict and its figures; of a plan without a fleet, what to relax."""

    verdict: str
    lead: tuple[LeadLine, ...]
    kpis: tuple[Kpi, ...]
    diagram: FleetDiagram
    relax: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SloSection:
    """Whether the limits are kept, and how sure that is."""

    title: str
    check: SloCheck | None
    table: Table
    error_bars: tuple[str, ...]
    confidence: str


@dataclass(frozen=True, slots=True)
class AlternativeRow:
    """One row of the alternatives' table; number: as --alternative takes it."""

    number: str
    name: str
    note: str
    fleet: tuple[str, ...]
    cost: str
    extra: str
    attainment: str
    slack: str
    why_not: str
    recommended: bool
    feasible: bool


@dataclass(frozen=True, slots=True)
class AlternativesSection:
    """The other fleets; cut: rows that are left out."""

    title: str
    rows: tuple[AlternativeRow, ...]
    with_slack: bool
    cut: int
    charts: tuple[Chart, ...]


@dataclass(frozen=True, slots=True)
class WhySection:
    """What binds, what each pool costs and how it runs."""

    charts: tuple[Chart, ...]
    pools: Table
    hand_over: str
    worth_hint: str


@dataclass(frozen=True, slots=True)
class WorkloadSection:
    """What was asked of the fleet, and what there was to buy."""

    charts: tuple[Chart, ...]
    facts: Facts
    offered: Facts
    routing: Table


@dataclass(frozen=True, slots=True)
class SettingsSection:
    """What the engines are told; transposed: one column for each pool."""

    engines: Table
    transposed: bool
    reasons: Table
    deployment: DeploymentCard


@dataclass(frozen=True, slots=True)
class TrustSection:
    """How the plan was made, and what its figures rest on."""

    origin: str
    provenance: Facts
    assumptions: tuple[str, ...]
    search: Facts
    dropped: Table
    step_errors: Table
    accuracy: Table
    accuracy_title: str
    origins: Table
    sources: tuple[SourceRow, ...]
    inputs: str
    words: Facts = WORDS


@dataclass(frozen=True, slots=True)
class Page:
    """Everything on the page; found: whether the plan has a fleet."""

    title: str
    eyebrow: tuple[str, ...]
    chips: tuple[str, ...]
    found: bool
    answer: AnswerSection
    slo: SloSection
    alternatives: AlternativesSection
    why: WhySection
    workload: WorkloadSection
    sensitivity: SensitivityView | None
    settings: SettingsSection
    trust: TrustSection
