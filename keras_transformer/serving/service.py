"""Translates the texts of a request: lines, sentences, the queue, deadlines, clients that leave."""

import asyncio
import contextlib
import functools
import itertools
import re
from typing import Any, NamedTuple

from keras_transformer.serving.errors import (
    ClientLeftError,
    DeadlineError,
    RequestError,
    TooLargeError,
)
from keras_transformer.translation.long_texts import sentences
from keras_transformer.translation.texts import BLANK

# Score of a hypothesis that the search finds impossible, and of an empty slot: JSON has no -inf.
LOWEST = -3.4028234663852886e38
_FEW_CHARACTERS = 2000  # they are processed faster than a thread can be asked to
_LINE_BREAK = re.compile(r"(\r\n|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029])")


async def in_thread_if_long(texts, function):
    """Returns `function()`, computed in a thread if the texts are so long that others would wait for it."""
    if sum(map(len, texts)) <= _FEW_CHARACTERS:
        return function()
    return await asyncio.to_thread(function)


class Hypothesis(NamedTuple):
    """One translation of a text.

    Attributes:
        text: str, with the line breaks of the source text.
        score: float, log-probability / length penalty; of a text in several parts the sum.
        log_prob: float.
        finished: bool, False if it was cut off at its length limit.
    """

    text: str
    score: float
    log_prob: float
    finished: bool


class Translated(NamedTuple):
    """Result of one text.

    Attributes:
        hypotheses: list of `Hypothesis`, best first. A text of several parts has one: lines or sentences.
        truncated: bool, whether the end of the text was left out.
    """

    hypotheses: list
    truncated: bool


class Plan(NamedTuple):
    """A text as a template and the parts of it that are translated.

    Attributes:
        template: list of str or int: white space and line breaks, and indices of parts.
        parts: list of str.
    """

    template: list
    parts: list


def plan_text(text, *, by_sentence, separator):
    """Divides a text into lines and, if `by_sentence`, into sentences.

    Args:
        text: str.
        by_sentence: bool.
        separator: str between two sentences of the translation.

    Returns:
        `Plan`.
    """
    template, parts = [], []
    for piece in _LINE_BREAK.split(text):
        middle = piece.strip()
        if not middle:
            template.append(piece)
            continue
        before, _, after = piece.partition(middle)
        template.append(before if by_sentence else "")
        for number, sentence in enumerate(sentences(middle, min_bytes=1) if by_sentence else [middle]):
            template += [separator] * bool(number) + [len(parts)]
            parts.append(sentence)
        template.append(after if by_sentence else "")
    if not parts and not by_sentence:
        return Plan([], [])  # a blank line, as in `translate`
    return Plan([piece for piece in template if piece != ""], parts)


def fill(plan, results):
    """Returns the `Translated` of a `Plan`, given the `NBest` of each part."""
    if len(plan.parts) == 1:
        (result,) = results
        best = [
            Hypothesis(_joined(plan, [item]), _finite(item.score), _finite(item.log_prob), item.finished)
            for item in result.translations
        ]
        return Translated(best, result.is_cut)
    best = [result.best for result in results] or [BLANK]
    text = _joined(plan, best)
    score, log_prob = (sum(getattr(item, name) for item in best) for name in ("score", "log_prob"))
    finished = all(item.finished for item in best)
    joined = Hypothesis(text, _finite(score), _finite(log_prob), finished)
    return Translated([joined], any(result.is_cut for result in results))


def _joined(plan, translations):
    """Returns the text of a `Plan` with the `Translation` of each part."""
    return "".join(translations[piece].text if isinstance(piece, int) else piece for piece in plan.template)


def _finite(number):
    return number if number > LOWEST else LOWEST  # of NaN, too


class Job(NamedTuple):
    """A request in the queue.

    Attributes:
        plans: list of `Plan`, one per text.
        futures: list of lists of `asyncio.Future`, results of the parts of each text.
        version: `Version` that translates.
        num_tokens: int, source tokens.
    """

    plans: list
    futures: list
    version: Any
    num_tokens: int

    def cancel(self):
        """Takes what still waits out of the queue."""
        for future in itertools.chain(*self.futures):
            future.cancel()


class Service:
    """Translates with the models of a server, through one queue.

    Args:
        models: `Models`.
        queue: `BatchingQueue` whose function is `run_batch`.
        config: `ServerConfig`.
        metrics: `Metrics`.
    """

    def __init__(self, models, queue, config, metrics):
        self.models, self.queue, self.config, self.metrics = models, queue, config, metrics

    @contextlib.asynccontextmanager
    async def job(self, name, texts, *, number=None, settings=None, by_sentence=False, num_texts=None):
        """Context manager: puts texts into the queue; cancels what is not done at its end.

        Args:
            name: str, of the model.
            texts: list of str.
            number: int, version; `None` for the newest.
            settings: dict, settings of search to change.
            by_sentence: bool, divides each text into sentences. Without it, only lines over the model's limit
                are divided, as `translate` does.
            num_texts: int, texts of the request, if `texts` are parts of them.

        Yields:
            `Job`.

        Raises:
            RequestError: refused.
        """
        version = self.models.version(name, number)
        engine, settings = version.engine, dict(settings or {})
        num_texts = len(texts) if num_texts is None else num_texts
        if num_texts > self.config.max_texts:
            raise TooLargeError(f"At most {self.config.max_texts} texts are allowed. Received: {num_texts}")
        most = self.config.max_beam_size
        if not 1 <= settings.get("beam_size", 1) <= most:
            raise RequestError(f"`beam_size` must be from 1 to {most}. Received: {settings['beam_size']}")
        try:
            engine.check_settings(settings)
        except ValueError as error:
            raise RequestError(str(error).replace("`search.", "`")) from error
        version.num_requests += 1
        job = None
        try:
            plan = functools.partial(plan_text, by_sentence=by_sentence, separator=engine.separator)
            plans = await in_thread_if_long(texts, lambda: list(map(plan, texts)))
            parts = [part for plan in plans for part in plan.parts]
            most = self.config.max_request_tokens
            if len(parts) > most:  # each has a token at least
                raise TooLargeError(f"At most {most:,} source tokens are allowed. Received: more")
            tokens = await in_thread_if_long(parts, lambda: engine.count_tokens(parts))
            if sum(tokens) > most:
                raise TooLargeError(f"At most {most:,} source tokens are allowed. Received: {sum(tokens):,}")
            group = version, tuple(sorted(settings.items()))
            futures = iter(self.queue.submit(group, parts, tokens))
            futures = [[next(futures) for _ in plan.parts] for plan in plans]
            job = Job(plans, futures, version, sum(tokens))
            yield job
        finally:
            version.num_requests -= 1
            if job is not None:
                job.cancel()

    async def wait(self, futures, *, left=None):
        """Waits for results.

        Args:
            futures: list of `asyncio.Future`.
            left: `asyncio.Future` that ends when the client has left; or `None`.

        Raises:
            DeadlineError: `timeout_seconds` have passed.
            ClientLeftError: the client has left.
            RequestError: a text could not be translated.
        """
        pending = asyncio.gather(*futures)
        waited_for = {pending} | ({left} if left else set())
        try:
            done, _ = await asyncio.wait(
                waited_for, timeout=self.config.timeout_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if pending in done:
                return pending.result()
            if left in done:
                raise ClientLeftError("The client closed the connection")
            raise DeadlineError(
                f"No answer within {self.config.timeout_seconds:g} seconds. Send less, or try again later",
                retry_after=self.queue.seconds_to_wait(),
            )
        finally:
            if not pending.done():
                pending.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await pending

    async def translate(self, name, texts, *, left=None, **options):
        """Translates texts.

        Args:
            name, texts, **options: as in `job`.
            left: as in `wait`.

        Returns:
            list of `Translated`, in the order of the texts.

        Raises:
            RequestError: refused or failed.
        """
        async with self.job(name, texts, **options) as job:
            await self.wait(list(itertools.chain(*job.futures)), left=left)
            results = [
                fill(plan, [future.result() for future in futures])
                for plan, futures in zip(job.plans, job.futures, strict=True)
            ]
        self._count(name, texts, job)
        return results

    async def stream(self, name, texts, *, left=None, **options):
        """As `translate`, but yields `(index, Translated)` of each text as soon as it is ready."""
        async with self.job(name, texts, **options) as job:
            waiting = {asyncio.ensure_future(self._text(index, job)) for index in range(len(texts))}
            try:
                while waiting:
                    waited_for = waiting | ({left} if left else set())
                    done, _ = await asyncio.wait(
                        waited_for,
                        timeout=self.config.timeout_seconds,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    if left in done:
                        raise ClientLeftError("The client closed the connection")
                    if not done:
                        raise DeadlineError(f"No answer within {self.config.timeout_seconds:g} seconds")
                    waiting -= done
                    for index, result in sorted((task.result() for task in done), key=lambda pair: pair[0]):
                        yield index, result
            finally:
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
        self._count(name, texts, job)

    async def _text(self, index, job):
        return index, fill(job.plans[index], await asyncio.gather(*job.futures[index]))

    def _count(self, name, texts, job):
        self.metrics.texts.labels(name).inc(len(texts))
        self.metrics.source_tokens.labels(name).inc(job.num_tokens)


def run_batch(group, texts):
    """Translates a batch: the function of the `BatchingQueue`."""
    version, settings = group
    return version.engine.translate(texts, dict(settings))
