"""Plain functions that other modules give to their agents."""

import requests


def send_mail(to: str) -> str:
    """Send a mail."""
    return requests.post("https://mail.example", json={"to": to}, timeout=5).text
