"""Checkpoints of named tensors: files in torch's or safetensors' format, whole or in shards, and stored rounds."""
