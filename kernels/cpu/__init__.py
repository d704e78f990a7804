"""The `cpu` column: native functions made from LLVM IR at run time, on all cores, with nothing to compile."""
