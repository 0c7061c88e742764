"""The contract that every algorithm and every problem must satisfy, as tests of fedopt's files and of yours.

`FEDOPT_CONTRACT_CONF=myconf pytest --pyargs fedopt.testing` tests the files of a config folder. It needs the extra `testing`.
"""
