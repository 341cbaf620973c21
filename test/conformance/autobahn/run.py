"""Runs wstest from the folder test/install.sh made: run.py SITE [wstest options]."""
import site
import sys

site.addsitedir(sys.argv.pop(1))  # its .pth files make the zope namespace

from autobahntestsuite.wstest import run

run()
