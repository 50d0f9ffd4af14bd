"""What people start: the command line, the worker, the servers."""
