"""What is true: the machine, the canonical form, the ledger and its Postgres; knows nothing of tools or LangGraph."""
