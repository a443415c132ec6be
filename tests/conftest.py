"""Lies here so that pytest puts this directory on the path: test modules import `strategies` from it."""
