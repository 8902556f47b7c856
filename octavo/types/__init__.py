"""Plain data that crosses borders, and the protocols at those borders.

Everything here is a value or a protocol: no behaviour beyond validation and derived quantities, and no import
of octavo but `octavo.errors`.
"""
