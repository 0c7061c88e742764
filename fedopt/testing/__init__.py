"""The contract that every algorithm and every problem keeps, as tests for fedopt's and for yours.

`FEDOPT_CONTRACT_CONF=myconf pytest --pyargs fedopt.testing` holds the files of a config folder to it. It needs the extra `testing`.
"""
