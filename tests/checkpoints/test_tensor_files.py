"""Files of tensors are whole on the disk before they have their names, and never a mixture of two."""

import os

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.checkpoints import tensor_files


def tree(value):
    return {"weights": {"kernel": tf.Variable(np.full((3, 5), value, "float32"))}, "step": tf.Variable(value)}


def value_of(prefix):
    found = tree(0.0)
    tensor_files.load(found, prefix)
    values = {float(found["step"].numpy()), *found["weights"]["kernel"].numpy().ravel().tolist()}
    assert len(values) == 1
    return values.pop()


class Killed(BaseException):
    """Ends what is running as a kill does: nothing expects it."""


def test_files_reach_the_disk_before_they_get_their_names(tmp_path, renames):
    prefix = tmp_path / "step-7"
    tensor_files.write(tree(7.0), prefix)
    assert renames == [("step-7.data-00000-of-00001", True), ("step-7.index", True)]
    assert value_of(prefix) == 7.0


@pytest.mark.parametrize("number", [0, 1, 2])
def test_killed_between_two_renames_there_is_one_state_or_none(number, tmp_path, monkeypatch):
    prefix = tmp_path / "step-7"
    tensor_files.write(tree(1.0), prefix)
    done, replace = [], os.replace

    def until_killed(source, target, **options):
        if len(done) == number:
            raise Killed
        done.append(target)
        replace(source, target, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", until_killed)
        if number == 2:
            tensor_files.write(tree(2.0), prefix)
        else:
            with pytest.raises(Killed):
                tensor_files.write(tree(2.0), prefix)
    # Never the index of one with the values of the other.
    if tensor_files.exists(prefix):
        assert value_of(prefix) == (2.0 if number == 2 else 1.0)
    assert tensor_files.exists(prefix) or number < 2
    tensor_files.write(tree(3.0), prefix)
    assert value_of(prefix) == 3.0
