import contextlib
@contextlib.contextmanager
def written_package(*a):
    yield
