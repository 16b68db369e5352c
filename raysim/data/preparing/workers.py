"""Decoding chunks, here or in worker processes."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.synchronize import Event

from raysim.data.preparing.staging import Chunk, write_chunk
from raysim.errors import RunError

_stop: Event | None = None
"""Set in a worker process when it starts."""


def decode_chunks(
    chunks: Sequence[Chunk], processes: int, on_chunk: Callable[[Chunk], None]
) -> None:
    """Decode chunks into their files.

    Args:
        chunks: what to decode.
        processes: worker processes, at least 1; one decodes here.
        on_chunk: called after each chunk, in the order in which they end.

    Raises:
        OSError: a file cannot be written.
        RunError: a worker process was killed.
    """
    processes = min(processes, len(chunks))
    if processes <= 1:
        for chunk in chunks:
            write_chunk(chunk)
            on_chunk(chunk)
        return
    context = multiprocessing.get_context("spawn")  # forked children would inherit our threads
    stop = context.Event()
    pool = ProcessPoolExecutor(processes, context, initializer=_start_worker, initargs=(stop,))
    try:
        with _no_interrupts():
            chunk_of = {pool.submit(_work, chunk): chunk for chunk in chunks}
        for future in as_completed(chunk_of):
            future.result()
            on_chunk(chunk_of[future])
    except BrokenProcessPool:
        raise RunError(
            "a process that decodes images was killed, perhaps for want of memory: run the same "
            "command again, with fewer processes if it was memory; it goes on from what is done"
        ) from None
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Block SIGINT for the block; processes that start in it keep it blocked.

    Ctrl-C reaches all processes of a terminal, but only the parent is to answer it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(stop: Event) -> None:
    global _stop
    _stop = stop
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the parent's end: a killed one cannot tell its workers, which would wait forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _work(chunk: Chunk) -> None:
    assert _stop is not None
    write_chunk(chunk, _stop.is_set)
