"""Conformance kits: tests that a plug-in of a kind inherits, one module a kind.

Some need a test library such as hypothesis, so a kit is imported by its module's name and nothing else imports it.
"""

__all__: list[str] = []
