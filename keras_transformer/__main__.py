"""`python -m keras_transformer PROGRAM ...` is the command `keras-transformer PROGRAM ...`."""

from keras_transformer.cli.main import main

if __name__ == "__main__":
    main()
