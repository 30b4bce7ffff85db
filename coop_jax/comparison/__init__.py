"""`coop_jax.compare`: a step under `jax.checkpoint` policies and under coop_jax."""
