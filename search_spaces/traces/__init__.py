"""Traces of real requests: Azure's and Mooncake's formats and any CSV or JSONL, streamed in bounded memory."""

from .arrivals import ArrivalStats
from .reader import detect_format, in_order, read_rows, read_trace
from .rows import ArrivalUnit, Columns, Rows, TraceFormat, UnnamedColumnError, Unservable
from .sessions import SessionSummary, is_session_trace, read_sessions
from .summary import TraceSummary, compact_rows, workload_mapping

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
    "detect_format",
    "in_order",
    "is_session_trace",
    "read_rows",
    "read_sessions",
    "read_trace",
    "workload_mapping",
]
