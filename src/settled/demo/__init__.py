"""The world of the demo: a ticket service that breaks on purpose, and the agents that use it."""
