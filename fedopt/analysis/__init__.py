"""Many runs as numbers: what their folders say, the tidy frame, groups, lines, statistics, tables, comparisons."""
