"""One file per op: formula, torch reference, fast versions, test cases."""
