"""Traces of real requests: Azure's and Mooncake's formats and any CSV or JSONL."""
