"""Doing work ahead in threads while earlier results are used."""

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Event
from types import TracebackType
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Background(Generic[Item, Result]):
    """Applies a function to items in threads, and hands out the results.

    Items are taken as needed. At most `ahead` of them are in work or wait as results, which bounds the memory.
    Use it in a `with` statement. Its end sets `stopping`, so that running functions can stop, and waits for them.
    """

    def __init__(self, function: Callable[[Item], Result], items: Iterator[Item], workers: int, ahead: int) -> None:
        self.function, self.items, self.ahead = function, items, ahead
        self.stopping = Event()
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="vidcom2")
        self._pending: list[Future[Result]] = []

    def take(self, waits: bool, in_order: bool = False) -> Result | None:
        """Return a result that is ready, and raise what the function raised.

        Args:
            waits: whether to wait for one if none is ready.
            in_order: whether it must be that of the first item.

        Returns:
            None if no item is left, or if none is ready and this does not wait.
        """
        self._submit()
        if not self._pending:
            return None
        candidates = self._pending[:1] if in_order else self._pending
        wait(candidates, timeout=None if waits else 0, return_when=FIRST_COMPLETED)
        ready = next((future for future in candidates if future.done()), None)
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
