"""The queue: merges the texts of concurrent requests into batches of similar length.

A text starts at once if no batch is running. Otherwise, once a thread is free, it waits for at most
`max_wait_ms` for others, unless there is a full batch or enough to choose from earlier, or as many texts have
come as the last batch had: its clients have then sent their next ones. As long as these still arrive, it
waits longer, up to a tenth of the time of that batch. A batch contains the text that has waited longest and
those of its group (same model and search settings) that are most similar in length, as many as fit into
`batch_tokens` with padding. If many texts wait or run, it leaves enough of them for the next batch to be
chosen from: texts of similar length cost less than a larger batch saves. In a long queue the texts of the
next few batches are chosen among: else each request would wait for the last text that resembles one of its
own.
"""

import asyncio
import concurrent.futures
import dataclasses
import itertools
import logging
import math
import time
from typing import Any

from keras_transformer.serving.errors import BusyError, EngineError, RequestError, UnavailableError

logger = logging.getLogger(__name__)

_BATCHES_AHEAD = 4  # a batch is chosen among as many texts as fit into these
_CHOICE = 2  # a batch is chosen from at least this multiple of its size, if that many texts wait
_FEW = 24  # below this size, a larger batch saves more time than similar lengths do
_RETURN = 0.1  # a thread waits at most this part of a batch's time for its clients' next texts


@dataclasses.dataclass(eq=False, slots=True)
class Item:
    """One text in the queue.

    Attributes:
        group: hashable; only texts of equal groups are in one batch.
        text: what is given to the group's function.
        tokens: int, source tokens, with the end of sentence.
        future: `asyncio.Future` of the result.
        since: float, when it came, `time.monotonic()`.
    """

    group: Any
    text: Any
    tokens: int
    future: Any
    since: float


class BatchingQueue:
    """Queue of texts and the threads that translate them in batches.

    All methods are called from one event loop.

    Args:
        run: function, `(group, list of texts)` -> list of results of the same length. It is called in
            `workers` threads.
        workers: int, batches in parallel.
        batch_tokens: int, most tokens of a batch, padding included; a longer text is a batch of its own.
        max_wait_ms: float, milliseconds that a text waits although a thread is free, while another is not;
            since the last arrival, if the clients of the last batch are sending their next texts.
        max_queue_tokens: int, most tokens that wait.
        max_queue_seconds: float, most seconds that the tokens that wait may need, once the speed is known.
        on_batch: function that is called with (texts, tokens, seconds) after each batch.
    """

    def __init__(
        self,
        run,
        *,
        workers,
        batch_tokens,
        max_wait_ms,
        max_queue_tokens,
        max_queue_seconds=math.inf,
        on_batch=None,
    ):
        self._run, self._on_batch = run, on_batch or (lambda *figures: None)
        self.batch_tokens, self.max_queue_tokens = batch_tokens, max_queue_tokens
        self._max_wait, self._max_queue_seconds = max_wait_ms / 1000, max_queue_seconds
        self._workers = workers
        self._pool = concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="translate")
        self._waiting = {}  # `Item` -> None, oldest first: an item is removed in constant time
        self._running = {}  # task -> its batch
        self._free_since = 0.0  # when a batch ended last
        self._seconds = 0.0  # its duration
        self._ended, self._arrived = 0, 0  # its texts, and those that came since
        self._last_arrival = 0.0
        self._tokens = 0
        self._speed = 0.0  # tokens a second while texts wait, smoothed; 0 until it is known
        self._timer = None
        self.is_closed = False

    @property
    def num_tokens(self):
        """Number of tokens that wait."""
        return self._tokens

    @property
    def num_texts(self):
        """Number of texts that wait."""
        return len(self._waiting)

    def submit(self, group, texts, tokens):
        """Adds the texts of one request, all or none.

        Args:
            group: hashable, the model and its settings.
            texts: list of what `run` takes.
            tokens: list of int, source tokens of each.

        Returns:
            list of `asyncio.Future`, the results. A cancelled one is not translated, unless its batch has
            begun.

        Raises:
            BusyError: the queue is full.
            UnavailableError: the queue was closed.
        """
        if self.is_closed:
            raise UnavailableError("The server is shutting down. Try another one", retry_after=5)
        most = min(self.max_queue_tokens, self._max_queue_seconds * (self._speed or math.inf))
        if self._tokens and self._tokens + sum(tokens) > most:
            raise BusyError(
                f"The queue is full: {self._tokens:,} tokens wait, this request has {sum(tokens):,}, and the "
                f"limit is {most:,.0f}. Try again later",
                retry_after=self.seconds_to_wait(),
            )
        loop, now = asyncio.get_running_loop(), time.monotonic()
        items = [
            Item(group, text, number, loop.create_future(), now)
            for text, number in zip(texts, tokens, strict=True)
        ]
        self._waiting.update(dict.fromkeys(items))
        self._arrived, self._last_arrival = self._arrived + len(items), now
        self._tokens += sum(tokens)
        for item in items:
            item.future.add_done_callback(lambda future, item=item: self._leave(item))
        self._start_batches()
        return [item.future for item in items]

    def seconds_to_wait(self):
        """Returns in how many seconds the queue will be empty, int from 1 to 60."""
        return min(60, max(1, math.ceil(self._tokens / self._speed))) if self._speed else 1

    async def close(self, timeout):
        """Accepts no more texts and waits until those accepted are translated.

        Args:
            timeout: float, seconds; what is not done then gets `UnavailableError`.

        Returns:
            int, number of texts that were not translated.
        """
        self.is_closed = True
        end = time.monotonic() + timeout
        while self._waiting or self._running:
            self._start_batches()
            if (left := end - time.monotonic()) <= 0:
                break
            waited_for = self._running or {asyncio.ensure_future(asyncio.sleep(self._max_wait))}
            await asyncio.wait(waited_for, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        return self.give_up()

    def give_up(self):
        """As `close`, but waits for nothing."""
        self.is_closed = True
        accepted = itertools.chain(self._waiting, *self._running.values())
        lost = [item for item in accepted if not item.future.done()]
        for item in lost:
            item.future.set_exception(UnavailableError("The server has shut down", retry_after=5))
        self._waiting.clear()
        self._tokens = 0
        for task in self._running:
            task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        return len(lost)

    def _leave(self, item):
        """Removes a text whose client left, if it still waits."""
        if item.future.cancelled() and item in self._waiting:
            del self._waiting[item]
            self._tokens -= item.tokens

    def _start_batches(self):
        while self._waiting and len(self._running) < self._workers:
            # The clients of a batch that has just ended send their next texts now: so the time begins again,
            # and ends when as many have come. Otherwise the first of them would be a small batch, which ends
            # early, and so on.
            enough = (
                self._tokens >= self.batch_tokens
                or len(self._waiting) >= _CHOICE * self._share()
                or 0 < self._ended <= self._arrived
            )
            left = self._end_of_wait() - time.monotonic()
            if self._running and not enough and not self.is_closed and left > 0:
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(left, self._on_timer)
                return
            batch = self._next_batch()
            taken = set(batch)
            self._waiting = {item: None for item in self._waiting if item not in taken}
            self._tokens -= sum(item.tokens for item in batch)
            self._ended = 0
            # A lone text is translated at a fraction of the speed of a long queue.
            task = asyncio.ensure_future(self._translate(batch, is_typical=bool(self._waiting)))
            self._running[task] = batch
            task.add_done_callback(self._on_done)

    def _end_of_wait(self):
        """Returns until when the text that has waited longest waits for others, as `time.monotonic()`."""
        begin = max(next(iter(self._waiting)).since, self._free_since)
        end = begin + self._max_wait
        if 0 < self._arrived < self._ended:
            # Twenty answers and the next requests of their clients take longer than `max_wait_ms`.
            end = max(end, min(self._last_arrival + self._max_wait, begin + _RETURN * self._seconds))
        return end

    def _on_timer(self):
        self._timer = None
        self._start_batches()

    def _on_done(self, task):
        self._ended, self._arrived = len(self._running.pop(task)), 0
        self._free_since = time.monotonic()
        self._start_batches()

    def _share(self):
        """Returns the maximum number of texts of the next batch.

        Of `workers` + `_CHOICE` batches of this size, `_CHOICE` wait while the others are translated.
        """
        number = len(self._waiting) + sum(map(len, self._running.values()))
        few = min(-(-number // self._workers), _FEW)
        return max(few, -(-number // (self._workers + _CHOICE)))

    def _next_batch(self):
        """Returns the items of the next batch: the oldest and those most similar to it in length."""
        oldest = next(iter(self._waiting))
        group = [item for item in self._waiting if item.group == oldest.group]
        ahead = _BATCHES_AHEAD * self.batch_tokens
        so_far = itertools.accumulate(item.tokens for item in group)
        group = group[: max(1, sum(1 for _ in itertools.takewhile(lambda tokens: tokens <= ahead, so_far)))]
        # Most similar first; among equals the oldest, as `sorted` is stable.
        group.sort(key=lambda item: abs(item.tokens - oldest.tokens))
        longest = list(itertools.accumulate((item.tokens for item in group), max))
        fits = itertools.takewhile(
            lambda number: (number + 1) * longest[number] <= self.batch_tokens, range(len(group))
        )
        return group[: max(1, min(self._share(), len(list(fits))))]

    async def _translate(self, batch, is_typical=False):
        loop, begin = asyncio.get_running_loop(), time.monotonic()
        group, texts = batch[0].group, [item.text for item in batch]
        try:
            results = await loop.run_in_executor(self._pool, self._run, group, texts)
        except Exception as error:  # noqa: BLE001 - a fault of one text must not end the server
            await self._translate_apart(batch, error)
            return
        self._seconds = seconds = time.monotonic() - begin
        tokens = sum(item.tokens for item in batch)
        if is_typical:
            speed = tokens / max(seconds, 1e-6) * self._workers
            self._speed = 0.8 * self._speed + 0.2 * speed if self._speed else speed
        self._on_batch(len(batch), tokens, seconds)
        for item, result in zip(batch, results, strict=True):
            if not item.future.done():
                item.future.set_result(result)

    async def _translate_apart(self, batch, error):
        """Translates each text of a failed batch alone, so that only the cause of the failure fails."""
        if len(batch) > 1:
            for item in batch:
                if not item.future.done():
                    await self._translate([item])
            return
        (item,) = batch
        if not isinstance(error, RequestError):
            logger.error("the model failed", exc_info=error)
            error = EngineError("The model failed on this text. The log of the server has the reason")
        if not item.future.done():
            item.future.set_exception(error)
