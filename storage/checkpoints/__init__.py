"""Checkpoint files of named tensors in torch's or safetensors' format, whole or in shards."""
