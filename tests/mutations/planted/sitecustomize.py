"""Runs in each Python process of a test, its workers and ranks too, and imports one module with a fault in its source."""

import importlib.machinery
import os
import sys

PATH, OLD, NEW = os.environ["PLANTED_PATH"], os.environ["PLANTED_OLD"], os.environ["PLANTED_NEW"]


class Planted(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):  # past the cache of compiled modules
        source = self.get_data(self.path).decode()
        assert source.count(OLD) == 1, f"{self.path} has not once {OLD}"
        return compile(source.replace(OLD, NEW), self.path, "exec", dont_inherit=True)


class Finder:
    def find_spec(self, name, path=None, target=None):
        for finder in (each for each in sys.meta_path if each is not self):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.origin and os.path.realpath(spec.origin) == PATH:
                    spec.loader = Planted(name, spec.origin)
                return spec
        return None


sys.meta_path.insert(0, Finder())
