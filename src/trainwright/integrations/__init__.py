"""Adapters to other libraries, each in a module or room of its own."""

__all__: list[str] = []
