"""Reading what somebody may have sent; writing a whole file or none."""
