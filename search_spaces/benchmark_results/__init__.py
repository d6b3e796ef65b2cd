"""Reads the result files of benchmark tools: one reader a format, one record for all."""

from .readers import read_results
from .records import BenchmarkRun, Latency, MeasuredStep, Record, Stated, Tool, Workers

__all__ = ["BenchmarkRun", "Latency", "MeasuredStep", "Record", "Stated", "Tool", "Workers", "read_results"]
