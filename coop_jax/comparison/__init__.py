"""`coop_jax.compare`: a step beside itself under every `jax.checkpoint` policy."""
