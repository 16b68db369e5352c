"""Everything that is Ray Core: the session, the actors and the executor that uses them."""

import os
import sys
from pathlib import Path

# Ray reads these when it is imported.
# The filter keeps notices about dead workers off stdout; the executor reports such deaths itself.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
# `ray start --head` protects a cluster if a token file exists; whoever joins must decide alike.
# Once Ray is imported it would see half of the change, so then the decision is its importer's.
if "ray" not in sys.modules and Path("~/.ray/auth_token").expanduser().exists():
    os.environ.setdefault("RAY_AUTH_MODE", "token")
