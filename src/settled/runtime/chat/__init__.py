"""The chat server: the threads, runs and streams that `langgraph_sdk` speaks, and a chat page.

A run is a row; whoever holds its lease carries it out in a `Session`, in this process or another one, and what it says
is kept in Postgres, so that a listener who was cut off goes on after the last thing that he has heard.
"""
