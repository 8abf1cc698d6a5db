"""The places where runs are stored: the interface that the store uses, the local disk, and object stores."""
