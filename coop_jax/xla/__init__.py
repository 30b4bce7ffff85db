"""XLA: modules, buffers, layouts and bytes of a compiled step; absent devices."""
