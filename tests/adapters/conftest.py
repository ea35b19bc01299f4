"""Adapters against the packages themselves, driven by their own APIs in the same run.

What can be in the usual virtual environment is tested with all else. A package that pins what others need otherwise has
its module marked `pytestmark = pytest.mark.adapter("KIND")`: such a module is not even imported, unless it is asked for
in a virtual environment that has `gymhost[server,KIND]`: `pytest tests/adapters --adapter KIND`.
"""

from support.adapters import host, remote

__all__ = ["host", "remote"]
