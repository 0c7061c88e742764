"""Many runs: sweeps, one job of many, processes on this machine, a cluster's queue."""
