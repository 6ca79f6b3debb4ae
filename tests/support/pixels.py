"""Columns of pixels (im2col), pixel by pixel as the PTX ISA tells it."""


def naive_bytes(tensor, at, offset):
    """Walk from pixel to pixel of a column; return the first bytes of the elements it reads."""
    sizes, spatial = tensor.sizes, len(tensor.sizes) - 2
    place = [*at[1:]]
    found = set()
    for _ in range(tensor.pixels):
        pixel = [p + o for p, o in zip(place, [*offset, 0], strict=True)]
        if all(0 <= p < n for p, n in zip(pixel, sizes[1:], strict=True)):
            distance = sum(p * s for p, s in zip(pixel, tensor.strides[1:], strict=True))
            base = tensor.address + distance
            for channel in range(max(0, at[0]), min(sizes[0], at[0] + tensor.channels)):
                found.add(base + channel * tensor.element)
        for d in range(spatial + 1):
            place[d] += tensor.steps[d + 1]
            if d == spatial or place[d] <= sizes[d + 1] - 1 + tensor.upper[d]:
                break
            place[d] = tensor.lower[d]
    return found
