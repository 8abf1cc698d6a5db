"""Files of named tensors: torch's and safetensors', in one piece or in shards."""
