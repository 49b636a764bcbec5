"""What the tests of the page in a browser share."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.web.page_server import PageStandIn

if TYPE_CHECKING:
    from tests.web.page_browser import Visits


@pytest.fixture(scope="module")
def visits() -> Iterator["Visits"]:
    """A browser. It ends with the module, because Playwright occupies the thread's event loop."""
    # Importing it skips where there is no browser, which only a module of tests may do.
    from tests.web.page_browser import launched

    with launched() as found:
        yield found


@pytest.fixture
def stand_in() -> Iterator[PageStandIn]:
    """A fake server of the page, with 10,000 topics and 1,000 clients."""
    server = PageStandIn().start()
    yield server
    server.stop()


@pytest.fixture
def visit(visits: "Visits", stand_in: PageStandIn) -> Iterator["Visits"]:
    """Opens pages of the fake server; after the test, none may have had a problem."""
    visits.url = stand_in.url
    yield visits
    visits.close()
