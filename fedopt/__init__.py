"""fedopt: experiments in federated nested optimisation."""

__version__ = "0.1.0"
