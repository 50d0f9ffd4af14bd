"""The server that people meet with a browser: login, console, and what else is mounted into it."""
