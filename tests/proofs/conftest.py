"""The proofs are an optional part: without the solver their tests are not collected."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("z3") else ["test_*.py"]
