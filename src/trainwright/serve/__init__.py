"""Serving: an ensemble placed on devices, worker processes that compute it, and what carries its answers to users."""

from trainwright.serve.service import Answer, Options, Service

__all__ = ["Answer", "Options", "Service"]
