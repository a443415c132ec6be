"""Processes for the ranks of a test, forked from a server that has loaded torch and has not yet trained.

A process that has run a backward pass may not be forked where torch is built with CUDA: autograd's threads are not in
the copy, and its backward passes fail or hang.
"""

import multiprocessing
import traceback
import warnings

import cloudpickle

__all__ = ["on_processes"]

_PRELOADED = ["torch", "torch._dynamo", "torch.distributed.fsdp", "trainwright.train.parallel.setup"]


def on_processes(target, arguments, seconds=240):
    """Call `target` with each of these arguments, in a process each; return what they returned, in their order."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    results = context.Queue()
    # Functions within functions go by value; warnings are errors there, too.
    given = [cloudpickle.dumps((target, each, warnings.filters)) for each in arguments]
    processes = [context.Process(target=_run, args=(place, each, results)) for place, each in enumerate(given)]
    for process in processes:
        process.start()
    found = {}
    for _ in processes:
        place, result, failure = results.get(timeout=seconds)
        assert failure is None, failure
        found[place] = result
    for process in processes:
        process.join()
    return [found[place] for place in range(len(processes))]


def _run(place, given, results):
    try:
        target, arguments, filters = cloudpickle.loads(given)
        warnings.resetwarnings()
        warnings.filters.extend(filters)
        results.put((place, target(*arguments), None))
    except Exception:  # noqa: BLE001 -- it is told
        results.put((place, None, traceback.format_exc()))
