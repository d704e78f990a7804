"""The `triton` column of the op table: for NVIDIA and AMD, and in Triton's interpreter where there is neither."""
