"""Where LangGraph meets it: the engine, the reference agent, the session."""
