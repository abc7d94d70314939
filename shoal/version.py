"""Shoal's version, for modules that must not import the public package `shoal`."""

__version__ = "0.2.0"
