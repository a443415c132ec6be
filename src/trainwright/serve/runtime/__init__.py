"""Runtimes: what computes a deployment's requests, in worker processes or in this process."""
