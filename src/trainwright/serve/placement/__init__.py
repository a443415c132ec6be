"""Placement: which members run on which devices, how large their batches are, and what that is worth."""
