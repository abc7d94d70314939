"""Aids of users' tests of their handlers."""
