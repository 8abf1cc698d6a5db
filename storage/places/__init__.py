"""The places where runs lie: what the store asks of them, and the local disk."""
