"""Modules for `settled check`: each fault of the bad ones is marked at its line, and the good ones have none."""
