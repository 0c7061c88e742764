from fedopt.jobs.job import Job as Job
from fedopt.jobs.job import Outcome as Outcome
from fedopt.jobs.local import Launcher as Launcher
from fedopt.jobs.local import Local as Local
from fedopt.jobs.local import run_all as run_all
from fedopt.jobs.slurm import Queue as Queue
from fedopt.jobs.slurm import queued as queued
from fedopt.jobs.sweep import sweep_all as sweep_all
