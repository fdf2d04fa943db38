"""The compute thread of a worker: runs the engine, one job at a time, so that the event loop keeps serving.

Tensor libraries release the interpreter lock inside their kernels, so blocks are served and landed meanwhile.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Then = Callable[[], None]
Job = Callable[[], Then]  # runs in the compute thread; what it returns is called in the loop's thread


class ComputeThread:
    """Runs jobs in order; `finish_one` does what comes after one, or raises what it raised."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Then | BaseException] = queue.SimpleQueue()
        self._unfinished = 0
        # A daemon, so that a rank can leave while a kernel is still running.
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Nothing is running, waiting or not yet finished."""
        return self._unfinished == 0

    def submit(self, job: Job) -> None:
        """The job will run after those before it."""
        self._unfinished += 1
        self._jobs.put(job)

    def finish_one(self, timeout_s: float) -> bool:
        """What comes after the next job is done; False if none ended within the time. Raises what the job raised."""
        try:
            done = self._done.get(timeout=timeout_s) if timeout_s > 0 else self._done.get_nowait()
        except queue.Empty:
            return False
        self._unfinished -= 1
        if isinstance(done, BaseException):
            raise done
        done()
        return True

    def stop(self, patience_s: float) -> None:
        """The thread ends after the job it is at; waits for that so long.

        A thread that is inside tensor code while the interpreter shuts down would bring the process down noisily.
        """
        self._jobs.put(None)
        self._thread.join(patience_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._done.put(job())
            except BaseException as error:  # noqa: BLE001 -- raised again in the loop's thread
                self._done.put(error)
