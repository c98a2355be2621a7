import os

import pytest

from keras_transformer.config.cores import usable_cores


def test_the_cores_are_those_of_this_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5, 6}, raising=False)
    assert usable_cores() == 3


@pytest.mark.parametrize(("counted", "expected"), [(8, 8), (None, 1)])
def test_a_system_without_affinity_counts_all_cores(monkeypatch, counted, expected):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: counted)
    assert usable_cores() == expected
