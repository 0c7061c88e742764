"""One problem, one file; the classes of problems and the reductions between them."""
