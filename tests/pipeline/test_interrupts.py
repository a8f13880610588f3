"""Ctrl-C while Ray starts: held until that is over, unless it comes twice."""

import os
import signal

import pytest

from specpipe.pipeline.interrupts import hold_interrupts


def test_an_interrupt_waits_for_the_block_to_end() -> None:
    before = signal.getsignal(signal.SIGINT)
    reached = []
    with pytest.raises(KeyboardInterrupt), hold_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("end of the block")
    assert reached and signal.getsignal(signal.SIGINT) is before


def test_the_second_interrupt_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt), hold_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("two interrupts were held")


def test_an_error_of_the_block_stays_what_it_is() -> None:
    with pytest.raises(ConnectionError), hold_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        raise ConnectionError
