"""The paper's allocator at run time: values with long idle intervals at planned offsets."""
