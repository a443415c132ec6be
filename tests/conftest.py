"""Lies here so that pytest puts this directory on the path: test modules import `strategies` from it."""

import os

# Read when torch and numba are loaded: small work is slower on several threads, far slower where cores are shared.
os.environ.setdefault("OMP_NUM_THREADS", "1")
