"""The memory of a process that computes on a CPU."""

import ctypes
import platform

# Parameters of glibc's `mallopt` (https://man7.org/linux/man-pages/man3/mallopt.3.html) and what they are set to.
ONE_ARENA = (-8, 1)  # of several, none is large enough for logits
NOTHING_MAPPED = (-3, 2**30)  # bytes, below which an array is cut from memory that the process has
NOTHING_GIVEN_BACK = (-1, 2**31 - 1)
TAKEN_AT_ONCE = (-2, 2**27)


def keep_memory():
    """Keep what arrays leave free for the next ones, instead of giving it back to the system and asking for it anew.

    TensorFlow and PyTorch on a CPU take new memory for most results of a step, and Linux fills each page with zeros
    when it is first touched: of a small model's training that is up to half of the time. Call it before the first
    model is built. The process then keeps the most memory that it ever had in use.

    Returns:
        Whether the system has such a switch: Linux with the GNU C library. Elsewhere nothing happens.

    Example: `keep_memory()  # then build, compile and fit`
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    options = (ONE_ARENA, NOTHING_MAPPED, NOTHING_GIVEN_BACK, TAKEN_AT_ONCE)
    done = [ctypes.CDLL(None).mallopt(*option) for option in options]  # all of them, whatever became of the first
    return all(done)
