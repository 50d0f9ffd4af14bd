"""Structured logs: one JSON object a line, with the action that the code was carrying out.

`say_what_goes_wrong` is for the processes of this package (`--log-json`); a host with logging of its own adds
`InAction` to a handler, and has the fields on each record. They come from the action's context, so lines of the
author's own body and of the libraries that it calls bear them too.
"""

import json
import logging
import sys
from datetime import UTC, datetime

from settled.tools import tracing
from settled.tools.context import CURRENT, LOGGED, named_in_logs

FIELDS = (*LOGGED, "trace")


class InAction(logging.Filter):
    """Puts the fields of the current action on each record (`record.action_id` …); None outside one."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record through."""
        for name, value in named_in_logs(CURRENT.get()).items():
            if not hasattr(record, name):  # what is logged about an action, from outside it, says which
                setattr(record, name, value)
        record.trace = tracing.current()
        return True


class JsonLines(logging.Formatter):
    """One object a line: at, level, logger, message, the action's fields, and a traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; what a message has of line ends is escaped in it."""
        said: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        said |= {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)


def say_what_goes_wrong(*, as_json: bool) -> None:
    """Let a process of its own tell its error stream what it meets: a line each from a warning on, or as JSON, with
    what it does as well.
    """
    if not as_json:
        if logging.lastResort is not None:
            logging.getLogger("settled").addHandler(logging.lastResort)
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(InAction())
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
