"""Work that is done ahead, in threads, while its results are used."""

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Event
from types import TracebackType
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Background(Generic[Item, Result]):
    """A function's results for items, in the order in which they are ready.

    Items are taken as needed: at most `ahead` of them are being worked on or wait as results, which bounds the memory.
    Used with `with`; the end waits for what is being worked on, which `stopping` tells to stop.
    """

    def __init__(self, function: Callable[[Item], Result], items: Iterator[Item], workers: int, ahead: int) -> None:
        self.function, self.items, self.ahead = function, items, ahead
        self.stopping = Event()
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="vidcom2")
        self._pending: list[Future[Result]] = []

    def take(self, waits: bool) -> Result | None:
        """A result that is ready; None if no item is left, and, unless it `waits`, if none is ready.

        Raises what the function raised.
        """
        self._submit()
        if not self._pending:
            return None
        wait(self._pending, timeout=None if waits else 0, return_when=FIRST_COMPLETED)
        ready = next((future for future in self._pending if future.done()), None)
        if ready is None:
            return None
        self._pending.remove(ready)
        self._submit()
        return ready.result()

    def _submit(self) -> None:
        while len(self._pending) < self.ahead:
            for item in self.items:
                self._pending.append(self._executor.submit(self.function, item))
                break
            else:
                return

    def __enter__(self) -> "Background[Item, Result]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stopping.set()
        self._executor.shutdown(wait=True, cancel_futures=True)
