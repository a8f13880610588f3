"""The run: plan, ledger, workers, driver. Shards go out, reports come back; the driver never touches a token."""
