"""Public operations: contracts, argument checks and the choice of the implementation. Never imports triton."""
