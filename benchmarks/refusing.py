"""Arguments that are refused in one line."""

import argparse


class Parser(argparse.ArgumentParser):
    """A parser whose `error` prints what is wrong and nothing else, and ends with exit code 2."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")
