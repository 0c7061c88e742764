"""Search for values (ranges, trials, what is kept of them), and the benchmark: tasks, reports, ranks, pages."""

SAMPLERS = ("tpe", "sobol", "random", "grid")  # of trials; here, since their libraries take long to import
