"""Shoal's version, for modules that must not reach what the package `shoal` offers to users."""

__version__ = "0.1.0"
