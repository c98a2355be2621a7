def largest_shape(shapes, config):
    """temporary"""
    return max(shapes, key=lambda s: s[0] * (s[1] + s[2]))


def out_of_memory_message(shape, config, error):
    """temporary"""
    return f"{shape} {error}"
