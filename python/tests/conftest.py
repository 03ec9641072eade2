"""Set-up of all tests."""

import signal

import pytest


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c() -> None:
    """Lets tests press Ctrl-C, which a process that was started in the background ignores."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
