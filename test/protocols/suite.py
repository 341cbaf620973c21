"""Runs modules of a suite of unittest: suite.py [--skip TEST]... MODULE...

Tests in which the SDK waits without an end are ended after PATIENCE seconds. The last
line is "N run, N failed".
"""

import argparse
import logging
import signal
import unittest

PATIENCE = 20


class Late(Exception):
    """A test took too long."""


def late(*_):
    raise Late(f"no end within {PATIENCE} s")


class Result(unittest.TextTestResult):
    def startTest(self, test):
        signal.alarm(PATIENCE)
        super().startTest(test)

    def stopTest(self, test):
        signal.alarm(0)
        super().stopTest(test)


def flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


options = argparse.ArgumentParser()
options.add_argument("--skip", action="append", default=[])
options.add_argument("modules", nargs="+")
o = options.parse_args()
signal.signal(signal.SIGALRM, late)
logging.getLogger().addHandler(logging.NullHandler())
every = list(flat(unittest.defaultTestLoader.loadTestsFromNames(o.modules)))
kept = [t for t in every if not any(t.id().endswith("." + name) for name in o.skip)]
if len(every) - len(kept) != len(o.skip):
    raise SystemExit(f"not all of {o.skip} are tests")
r = unittest.TextTestRunner(resultclass=Result, verbosity=0).run(unittest.TestSuite(kept))
print(f"{r.testsRun} run, {len(r.failures) + len(r.errors)} failed")
