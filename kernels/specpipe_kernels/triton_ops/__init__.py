"""Triton implementations. Import a module of this package only where triton is installed."""
