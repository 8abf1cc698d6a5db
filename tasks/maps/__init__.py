"""Maps: backprop over one partition."""
