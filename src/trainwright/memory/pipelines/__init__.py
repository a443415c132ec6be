"""Pipelines of a chain: where to cut it, what each stage holds, and how long a step takes under a schedule."""
