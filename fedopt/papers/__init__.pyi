from fedopt.papers.published import chosen as chosen
from fedopt.papers.published import load as load
from fedopt.papers.published import names as names
from fedopt.papers.published import takes as takes
from fedopt.papers.report import Plan as Plan
