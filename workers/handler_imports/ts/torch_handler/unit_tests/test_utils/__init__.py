"""Utilities for users' tests of their handlers."""
