"""What acting safely means: contracts, outcomes, the protocol, messages; knows the state, nothing of LangGraph."""
