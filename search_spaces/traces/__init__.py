"""Traces of real requests: Azure's and Mooncake's formats and any CSV or JSONL."""

from .reader import ArrivalUnit, Columns, Rows, TraceFormat, UnnamedColumnError, Unservable
from .sessions import SessionSummary, is_session_trace, read_sessions
from .summary import ArrivalStats, TraceSummary, compact_rows, read_trace, workload_mapping

__all__ = [
    "ArrivalStats",
    "ArrivalUnit",
    "Columns",
    "Rows",
    "SessionSummary",
    "TraceFormat",
    "TraceSummary",
    "UnnamedColumnError",
    "Unservable",
    "compact_rows",
    "is_session_trace",
    "read_sessions",
    "read_trace",
    "workload_mapping",
]
