"""How a command ends: its errors in words, its exit status."""

import sys
from collections.abc import Callable


def guarded(command: Callable[[], object]) -> int:
    """Run a command, word its errors, and return its exit status.

    0 done; 1 failed; 2 the user can put it right; 128 + n stopped by signal n.
    """
    from raysim.errors import Interrupted, RunError, UserError, remedy

    try:
        command()
    except UserError as error:
        return complain(f"error: {error}", 2)
    except (RunError, OSError) as error:
        told = [f"the run failed: {error}", remedy(error) if isinstance(error, OSError) else ""]
        return complain("\n".join(filter(None, told)), 1)
    except Interrupted as stop:
        return 128 + stop.signum
    except KeyboardInterrupt:
        return 130
    return 0


def complain(text: str, status: int) -> int:
    """Tell something on standard error; returns the exit status that was given."""
    sys.stderr.write(f"raysim: {text}\n")
    return status
