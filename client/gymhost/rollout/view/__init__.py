"""Trajectories as a page that people read in a browser.

Example:
    store = Store.open("runs/first")
    write_page("runs/first/view.html", store, title="first", settings=store.settings, pieces=store.pieces)
"""

from gymhost.rollout.view.page import PAGE_BYTES, Written, write_page

__all__ = ["PAGE_BYTES", "Written", "write_page"]
