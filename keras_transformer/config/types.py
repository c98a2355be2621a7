"""Names for types in annotations."""

import os
from typing import Any

PathLike = str | os.PathLike[str]
# A tensor of Keras' backend, or an array in its place; the backends have no common type.
Tensor = Any
Shape = tuple[int | None, ...]
