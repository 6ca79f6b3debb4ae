"""What processes of their own run: they import it from here, as test modules they cannot."""

import os
import signal


def square_or_die(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 3:
        os._exit(7)
    return number * number
