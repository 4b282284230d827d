"""Evidence that a patched stack trains right.

`run.py` starts a child process of the target's interpreter and never imports torch; `static.py` needs the
standard library only; everything else here is imported inside that child.
"""
