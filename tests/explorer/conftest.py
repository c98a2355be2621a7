"""A server of the explorer's page, with a stand-in for the model: the page is tested here, not the model."""

import pytest
from fake_explorer import FakeExplorer
from page_server import PageServer


@pytest.fixture(scope="session")
def explorer_server():
    """A running server with `url` and `handler`, whose `refusals` and `delays` meet the next requests."""
    explorers = [FakeExplorer("fake"), FakeExplorer("other", seed=5), FakeExplorer("large", 6, 8)]
    with PageServer(explorers) as server:
        yield server


@pytest.fixture
def explorer_url(explorer_server):
    explorer_server.handler.refusals.clear()
    explorer_server.handler.delays.clear()
    return explorer_server.url
