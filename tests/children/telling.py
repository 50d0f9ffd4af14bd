"""What a child of the fork server tells the test that started it: lines of JSON, on the server's standard output."""

import json
import os

_job: int | None = None


def tell(**line: object) -> None:
    """One write of less than a pipe's atomic size: the lines of several processes never mix."""
    os.write(1, json.dumps(line).encode() + b"\n")


def is_job(job: int) -> None:
    """This process is the child of a job from now on."""
    global _job
    _job = job


def say(value: object) -> None:
    """Tell the test something before the end."""
    tell(job=_job, said=value)
