"""The queue: which texts are translated together, when, and what happens to the others."""

import asyncio
import threading
import types

import pytest
from fake_serving import PATIENCE, in_event_loop, until
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.serving import batching
from keras_transformer.serving.batching import BatchingQueue
from keras_transformer.serving.errors import BusyError, EngineError, RequestError, UnavailableError

LONG = 1000  # milliseconds: the most that a text may wait


class Recorder:
    """The function of a queue: capitals; it waits for `gate` and fails for texts in `failing`."""

    def __init__(self):
        self.batches, self.failing = [], {}
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, group, texts):
        self.batches.append((group, list(texts)))
        assert self.gate.wait(PATIENCE)
        for text in texts:
            if text in self.failing:
                raise self.failing[text]
        return [f"{group}:{text.upper()}" for text in texts]

    @property
    def texts(self):
        return [texts for _, texts in self.batches]


def make(run, **options):
    options = {"workers": 1, "batch_tokens": 100, "max_wait_ms": LONG, "max_queue_tokens": 1009, **options}
    return BatchingQueue(run, **options)


async def blocked(run, queue, text="first", tokens=1):
    """Closes the gate and puts a text in, which now occupies a thread; returns its future."""
    run.gate.clear()
    (future,) = queue.submit("a", [text], [tokens])
    await until(lambda: run.batches)
    return future


@in_event_loop
async def test_a_text_starts_at_once_when_nothing_runs():
    run = Recorder()
    queue = make(run)
    run.gate.clear()
    (future,) = queue.submit("a", ["one"], [2])
    assert queue.num_texts == queue.num_tokens == 0  # it does not wait, although the batch is not full
    run.gate.set()
    assert await future == "a:ONE"


@in_event_loop
async def test_texts_that_come_while_a_batch_runs_are_one_batch():
    run = Recorder()
    queue = make(run)
    first = await blocked(run, queue)
    others = [*queue.submit("a", ["b", "c"], [3, 2]), *queue.submit("a", ["d"], [5])]
    assert (queue.num_texts, queue.num_tokens) == (3, 10)
    run.gate.set()
    assert await asyncio.gather(first, *others) == ["a:FIRST", "a:B", "a:C", "a:D"]
    assert run.texts[0] == ["first"]
    assert sorted(run.texts[1]) == ["b", "c", "d"]
    assert (queue.num_texts, queue.num_tokens) == (0, 0)


@in_event_loop
async def test_a_text_waits_no_longer_than_the_longest_wait_for_a_free_thread():
    run = Recorder()
    queue = make(run, workers=2, max_wait_ms=20)
    first = await blocked(run, queue)
    second = queue.submit("a", ["second"], [2])
    await until(lambda: len(run.batches) == 2)  # though the first still runs, and the batch is not full
    run.gate.set()
    await asyncio.gather(first, *second)


@in_event_loop
async def test_a_free_thread_waits_for_more_texts_until_a_batch_is_full():
    run = Recorder()
    queue = make(run, workers=2, batch_tokens=11)
    first = await blocked(run, queue)
    waiting = queue.submit("a", ["b"], [5])
    await asyncio.sleep(0.01)
    assert queue.num_texts == 1  # for up to a second, as there is a free thread but no full batch
    waiting += queue.submit("a", ["c", "d"], [5, 2])
    await until(lambda: len(run.batches) == 2)
    assert sorted(run.texts[1]) == ["b", "c"]
    run.gate.set()
    await asyncio.gather(first, *waiting)


@in_event_loop
async def test_many_texts_are_batches_of_similar_length_and_leave_some_to_choose_from():
    run = Recorder()
    queue = make(run)
    first = await blocked(run, queue)
    lengths = [*[1] * 31, *[2, 3] * 31]
    others = queue.submit("a", [f"{number}" for number in range(93)], lengths)
    run.gate.set()
    await asyncio.gather(first, *others)
    # One thread: a third of those that wait, but at least 24; of 93, 62 and 38, then 14.
    assert [len(texts) for texts in run.texts] == [1, 31, 24, 24, 14]
    for texts, length in zip(run.texts[1:], (1, 2, 3, None), strict=True):
        found = {lengths[int(text)] for text in texts}
        assert found == ({length} if length else {2, 3})  # of the oldest, while there are enough


@in_event_loop
async def test_a_free_thread_does_not_wait_if_there_are_enough_to_choose_from():
    run = Recorder()
    queue = make(run, workers=2, batch_tokens=1000, max_wait_ms=2000 * PATIENCE)
    first = await blocked(run, queue)
    waiting = queue.submit("a", list(map(str, range(10))), [2] * 10)
    await asyncio.sleep(0.01)
    assert len(run.batches) == 1  # twice a batch of 6 would be enough
    waiting += queue.submit("a", list(map(str, range(10, 48))), [2] * 38)
    await until(lambda: len(run.batches) == 2)  # 48 texts are, for a batch of 24
    assert len(run.texts[1]) == 24
    run.gate.set()
    await asyncio.gather(first, *waiting)


@in_event_loop
@pytest.mark.parametrize("workers", [2, 3])
async def test_a_free_thread_waits_only_until_as_many_texts_have_come_as_its_last_batch_had(workers):
    run, end = Recorder(), threading.Event()

    def translate(group, texts):
        if not {"long", "d"}.isdisjoint(texts):
            assert end.wait(PATIENCE)
        return run(group, texts)

    queue = make(translate, workers=workers, batch_tokens=8)
    waiting = queue.submit("a", ["long"], [1])
    await asyncio.gather(*queue.submit("a", ["b", "c"], [4, 4]))  # with three threads, two batches of one
    if workers == 2:
        waiting += queue.submit("a", ["e"], [1])
        await asyncio.sleep(0.01)
        assert queue.num_texts == 1  # for up to a second
    waiting += queue.submit("a", ["d"], [1])
    assert queue.num_texts == 0  # the clients of the last batch have sent their next texts
    waiting += queue.submit("a", ["f"], [1])
    assert queue.num_texts == 1  # although a third thread is free
    end.set()
    await asyncio.gather(*waiting)


@in_event_loop
@pytest.mark.parametrize(
    ("num_texts", "arrivals", "begins_at"),
    [
        (3, [0], 20),  # nobody else comes
        (3, [0, 15], 35),  # 20 ms after the last of its clients that came
        (12, [0, 15, 30, 45, 60, 75, 90], 100),  # a tenth of the batch's second
        (3, [0, 15, 16], 16),  # all have come
    ],
)
async def test_a_free_thread_waits_as_long_as_the_clients_of_its_last_batch_still_send(
    monkeypatch, num_texts, arrivals, begins_at
):
    run, end, clock = Recorder(), threading.Event(), [1000.0]
    monkeypatch.setattr(batching, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))

    def translate(group, texts):
        run.batches.append((group, texts))
        assert (end if "long" in texts else run.gate).wait(PATIENCE)
        return texts

    run.gate.clear()
    queue = make(translate, workers=2, max_wait_ms=20)
    lengths = [1] * num_texts + [2] * num_texts
    found = queue.submit("a", ["text"] * num_texts + ["long"] * num_texts, lengths)
    clock[0] += 0.021  # the second thread has waited for more
    await until(lambda: len(run.batches) == 2)
    assert [len(texts) for texts in run.texts] == [num_texts] * 2
    clock[0] += 1
    run.gate.set()
    await asyncio.gather(*found[:num_texts])
    begin = clock[0]
    for milliseconds in sorted({*arrivals, begins_at - 1}):
        clock[0] = begin + milliseconds / 1000
        if milliseconds in arrivals:
            found += queue.submit("a", [f"{milliseconds}"], [1])
        await asyncio.sleep(0.03)  # the timer looks at the clock again
        if milliseconds < begins_at:
            assert len(run.batches) == 2
    clock[0] = begin + (begins_at + 0.1) / 1000
    await until(lambda: len(run.batches) == 3)
    assert len(run.texts[2]) == len(arrivals)
    end.set()
    await asyncio.gather(*found)


@in_event_loop
async def test_a_batch_has_texts_of_one_group():
    run = Recorder()
    queue = make(run)
    first = await blocked(run, queue)
    futures = []
    for group, text in zip("abcab", "vwxyz", strict=True):
        futures += queue.submit(group, [text], [3])
    run.gate.set()
    assert await asyncio.gather(first, *futures) == ["a:FIRST", "a:V", "b:W", "c:X", "a:Y", "b:Z"]
    assert run.batches[1:] == [("a", ["v", "y"]), ("b", ["w", "z"]), ("c", ["x"])]


@in_event_loop
async def test_a_batch_has_the_oldest_text_and_those_most_similar_in_length():
    run = Recorder()
    queue = make(run, batch_tokens=24)
    first = await blocked(run, queue)
    lengths = [7, 2, 11, 8, 3, 6]
    futures = queue.submit("a", [str(length) for length in lengths], lengths)
    run.gate.set()
    await asyncio.gather(first, *futures)
    # 3 texts of up to 8 tokens are 24. Then 2 is the oldest, and after it 11.
    assert [sorted(map(int, texts)) for texts in run.texts[1:]] == [[6, 7, 8], [2, 3], [11]]


@in_event_loop
async def test_a_text_longer_than_a_batch_is_a_batch_of_its_own():
    run = Recorder()
    queue = make(run, batch_tokens=5)
    first = await blocked(run, queue)
    futures = queue.submit("a", ["b", "long", "c"], [2, 7, 2])
    run.gate.set()
    await asyncio.gather(first, *futures)
    assert run.texts[1:] == [["b", "c"], ["long"]]


@in_event_loop
async def test_a_request_that_does_not_fit_is_refused_as_a_whole():
    run = Recorder()
    queue = make(run, max_queue_tokens=17)
    first = await blocked(run, queue)
    kept = queue.submit("a", ["b"], [13])
    with pytest.raises(
        BusyError, match="full: 13 tokens wait, this request has 5, and the limit is 17"
    ) as caught:
        queue.submit("a", ["c", "d"], [2, 3])
    assert (queue.num_texts, queue.num_tokens) == (1, 13)
    assert caught.value.status == 429
    assert 1 <= caught.value.retry_after <= 60
    kept += queue.submit("a", ["e", "f"], [1, 3])  # 17 are allowed
    run.gate.set()
    await asyncio.gather(first, *kept)
    assert sorted(sum(run.texts, [])) == ["b", "e", "f", "first"]


@in_event_loop
async def test_the_time_to_wait_follows_from_the_speed():
    run = Recorder()
    queue = make(run)
    assert queue.seconds_to_wait() == 1
    await blocked(run, queue)
    futures = queue.submit("a", ["b", "c"], [50, 51])
    for speed, seconds in [(1000.0, 1), (50.5, 2), (50.0, 3), (0.1, 60)]:
        queue._speed = speed
        assert queue.seconds_to_wait() == seconds
    run.gate.set()
    await asyncio.gather(*futures)


@in_event_loop
async def test_the_speed_is_that_of_a_queue_in_which_texts_wait():
    run = Recorder()
    queue = make(run, batch_tokens=20)
    for _ in range(3):
        await asyncio.gather(*queue.submit("a", ["lone"], [7]))
        assert queue._speed == 0  # says little about the speed of batches
    first = await blocked(run, queue)
    others = queue.submit("a", ["b", "c"], [11, 13])  # two batches, one after the other
    run.gate.set()
    await asyncio.gather(first, *others)
    assert queue._speed > 0
    known = queue._speed
    await asyncio.gather(*queue.submit("a", ["lone"], [7]))
    assert queue._speed == known


@in_event_loop
async def test_no_more_tokens_wait_than_are_translated_in_the_longest_time():
    run = Recorder()
    queue = make(run, max_queue_tokens=1009, max_queue_seconds=3)
    first = await blocked(run, queue)
    queue._speed = 7.0  # 21 tokens in 3 seconds
    kept = queue.submit("a", ["b"], [17])
    with pytest.raises(
        BusyError, match="full: 17 tokens wait, this request has 5, and the limit is 21"
    ) as caught:
        queue.submit("a", ["c"], [5])
    assert caught.value.retry_after == 3  # 17 tokens at 7 a second
    kept += queue.submit("a", ["d"], [4])
    run.gate.set()
    await asyncio.gather(first, *kept)


@in_event_loop
async def test_a_cancelled_text_is_not_translated_and_takes_no_room():
    run = Recorder()
    queue = make(run, max_queue_tokens=7)
    first = await blocked(run, queue)
    gone, kept = queue.submit("a", ["gone", "kept"], [3, 4])
    gone.cancel()
    await asyncio.sleep(0)
    assert (queue.num_texts, queue.num_tokens) == (1, 4)
    (more,) = queue.submit("a", ["more"], [3])
    run.gate.set()
    assert await asyncio.gather(first, kept, more) == ["a:FIRST", "a:KEPT", "a:MORE"]
    assert sorted(sum(run.texts, [])) == ["first", "kept", "more"]


@in_event_loop
async def test_a_text_that_is_cancelled_while_its_batch_runs_harms_no_other():
    run = Recorder()
    queue = make(run)
    run.gate.clear()
    gone, kept = queue.submit("a", ["gone", "kept"], [3, 3])
    await until(lambda: run.batches)
    gone.cancel()
    run.gate.set()
    assert await kept == "a:KEPT"
    assert gone.cancelled()


@in_event_loop
async def test_a_text_that_fails_does_not_fail_its_neighbours(caplog):
    run = Recorder()
    queue = make(run)
    first = await blocked(run, queue)
    run.failing = {"bad": ZeroDivisionError("the secret reason"), "refused": RequestError("not this one")}
    futures = queue.submit("a", ["b", "bad", "refused", "c"], [2, 2, 2, 2])
    run.gate.set()
    await first
    found = await asyncio.gather(*futures, return_exceptions=True)
    assert [found[0], found[3]] == ["a:B", "a:C"]
    assert isinstance(found[1], EngineError)
    assert "secret" not in str(found[1])
    assert str(found[2]) == "not this one"
    assert "the secret reason" in caplog.text
    assert await queue.submit("a", ["later"], [2])[0] == "a:LATER"


@in_event_loop
async def test_closing_translates_what_was_accepted_and_accepts_no_more():
    run = Recorder()
    queue = make(run, batch_tokens=5)
    first = await blocked(run, queue)
    futures = queue.submit("a", list("bcdef"), [2, 3, 2, 3, 5])
    closing = asyncio.ensure_future(queue.close(PATIENCE))
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="shutting down") as caught:
        queue.submit("a", ["late"], [1])
    assert caught.value.status == 503
    run.gate.set()
    assert await closing == 0
    assert await asyncio.gather(first, *futures) == ["a:FIRST", "a:B", "a:C", "a:D", "a:E", "a:F"]
    assert await queue.close(PATIENCE) == 0


@in_event_loop
async def test_closing_says_how_many_texts_were_lost_and_their_clients_are_told():
    run = Recorder()
    queue = make(run)
    run.gate.clear()
    running = queue.submit("a", ["b", "c"], [2, 2])
    await until(lambda: run.batches)
    waiting = queue.submit("a", ["d", "e", "f"], [2, 2, 2])
    waiting[0].cancel()
    assert await queue.close(0.01) == 4  # two that run and two that wait
    found = await asyncio.gather(*running, *waiting[1:], return_exceptions=True)
    assert [type(error) for error in found] == [UnavailableError] * 4
    assert (queue.num_texts, queue.num_tokens) == (0, 0)
    run.gate.set()


@in_event_loop
async def test_batches_are_reported_with_their_sizes():
    run, reported = Recorder(), []
    queue = make(run, on_batch=lambda *figures: reported.append(figures))
    first = await blocked(run, queue, tokens=3)
    futures = queue.submit("a", ["b", "c"], [5, 7])
    run.gate.set()
    await asyncio.gather(first, *futures)
    assert [(texts, tokens) for texts, tokens, _ in reported] == [(1, 3), (2, 12)]
    assert all(seconds >= 0 for *_, seconds in reported)


requests = st.lists(
    st.tuples(st.sampled_from("ab"), st.lists(st.integers(1, 30), max_size=7), st.booleans()),
    min_size=1,
    max_size=13,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    requests=requests, workers=st.integers(1, 3), budget=st.integers(1, 61), wait=st.sampled_from([0, 1, 5])
)
def test_every_text_gets_its_own_result_whatever_the_batches_are(requests, workers, budget, wait):
    run = Recorder()
    lengths = {}

    async def submit_all():
        queue = make(run, workers=workers, batch_tokens=budget, max_wait_ms=wait, max_queue_tokens=10**6)
        futures = []
        for number, (group, tokens, pauses) in enumerate(requests):
            texts = [f"t{number}-{index}" for index in range(len(tokens))]
            lengths.update(zip(texts, tokens, strict=True))
            futures.append(queue.submit(group, texts, tokens))
            await asyncio.sleep(0.0005 if pauses else 0)
        found = [await asyncio.gather(*each) for each in futures]
        assert await queue.close(PATIENCE) == 0
        return found

    found = asyncio.run(asyncio.wait_for(submit_all(), PATIENCE))
    assert found == [
        [f"{group}:T{number}-{index}" for index in range(len(tokens))]
        for number, (group, tokens, _) in enumerate(requests)
    ]
    assert sorted(sum(run.texts, [])) == sorted(lengths)  # each once
    for group, texts in run.batches:
        padded = len(texts) * max(lengths[text] for text in texts)
        assert padded <= budget or len(texts) == 1
        assert {requests[int(text[1:].split("-")[0])][0] for text in texts} == {group}
