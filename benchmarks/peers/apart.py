"""A model that another process writes, so that its memory is not counted and nothing of it stays loaded."""

import multiprocessing


def write_apart(write, size, folder):
    """Calls `write(size, folder, parameters)` in a new process and waits for its end.

    Args:
        write: function of a module; it stores the number of parameters in `parameters.value`.
        size: `Size`.
        folder: str, path that `write` makes.

    Returns:
        int, the number of parameters.

    Raises:
        RuntimeError: the process failed.
    """
    processes = multiprocessing.get_context("spawn")
    parameters = processes.Value("q", 0)
    writer = processes.Process(target=write, args=(size, folder, parameters))
    writer.start()
    writer.join()
    if writer.exitcode:
        raise RuntimeError(f"The model could not be written: exit code {writer.exitcode}")
    return parameters.value
