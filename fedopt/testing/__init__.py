"""The contract that every algorithm and every problem must satisfy, as tests of fedopt's files and of your files.

`FEDOPT_CONTRACT_CONF=myconf pytest --pyargs fedopt.testing` tests the files in the config folder myconf. The tests need the
extra `testing`.
"""
