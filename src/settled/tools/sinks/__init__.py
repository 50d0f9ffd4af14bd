"""Where messages go: a webhook, a task of procrastinate. A function of a `Delivery` is a sink by itself."""
