SAMPLERS = ("tpe", "sobol", "random", "grid")  # of trials; here, since their libraries take long to import
