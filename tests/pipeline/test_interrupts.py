"""Tests of interrupts while Ray starts."""

import os
import signal

import pytest

from specpipe.pipeline.interrupts import hold_interrupts


def test_first_interrupt_waits_for_the_end_of_the_block() -> None:
    before = signal.getsignal(signal.SIGINT)
    reached = []
    with pytest.raises(KeyboardInterrupt), hold_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("end of the block")
    assert reached and signal.getsignal(signal.SIGINT) is before


def test_second_interrupt_raises_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), hold_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("two interrupts were held")


def test_error_of_the_block_is_not_replaced() -> None:
    with pytest.raises(ConnectionError), hold_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        raise ConnectionError
