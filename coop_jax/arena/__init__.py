"""The paper's allocator at run time: values that wait long lie at the plan's offsets."""
