"""The contract that every algorithm and every problem keeps, as tests for fedopt's own and for yours.

`FEDOPT_CONTRACT_CONF=myconf pytest --pyargs fedopt.testing` tests the files of a config folder. It needs the extra `testing`.
"""
