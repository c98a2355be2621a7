"""Writes a small set with the name, config, version and features of `wmt14_translate/de-en`.

    python tests/text/write_wmt14.py DATA_DIR CORPUS

`CORPUS` is a folder with `train`, `validation` and `test`, each `.de` and `.en`. Only where
the sentences come from differs from TensorFlow Datasets' own builder: it downloads them.
"""

import pathlib
import sys

import tensorflow_datasets as tfds
from tensorflow_datasets.core import registered
from tensorflow_datasets.translate import wmt14

with registered.skip_registration():

    class Wmt14Translate(wmt14.Wmt14Translate):
        """The builder of TensorFlow Datasets with other sentences."""

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples(split) for split in ("train", "validation", "test")}

        def _generate_examples(self, split):
            sides = {
                language: pathlib.Path(CORPUS, f"{split}.{language}").read_bytes().split(b"\n")[:-1]
                for language in ("de", "en")
            }
            for i in range(len(sides["de"])):
                # A literal "\n" stands for a newline inside a text.
                yield (
                    i,
                    {language: lines[i].decode().replace("\\n", "\n") for language, lines in sides.items()},
                )


DATA_DIR, CORPUS = sys.argv[1:]
builder = Wmt14Translate(config="de-en", data_dir=DATA_DIR)
builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))
print(builder.info.full_name, {name: split.num_examples for name, split in builder.info.splits.items()})
