"""The unit prefixes, each written once. Inside pdplan every quantity is SI: seconds, bytes, FLOP, dollars per hour."""

KILO = 1e3
MEGA = 1e6
GIGA = 1e9
TERA = 1e12

MIB = 2**20
GIB = 2**30
TIB = 2**40

MILLI = 1e-3
MICRO = 1e-6

SECONDS_PER_HOUR = 3600.0
HOURS_PER_DAY = 24
DAY = HOURS_PER_DAY * SECONDS_PER_HOUR
"""[s]"""
