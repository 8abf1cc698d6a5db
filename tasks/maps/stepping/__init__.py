"""Steps of backprop: taken eagerly, recorded once, then replayed."""
