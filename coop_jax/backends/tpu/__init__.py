"""XLA:TPU alone: two memories, bfloat16 storage, layouts, packing."""
