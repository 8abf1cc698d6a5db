"""The places where runs lie: what the store asks of them, the local disk, and object stores."""
