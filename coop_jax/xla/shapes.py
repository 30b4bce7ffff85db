"""Shapes: the arrays in an encoded shape, their layouts and their bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from coop_jax.xla.protobuf_wire import fields, integers, repeated

# Field numbers of xla/xla_data.proto.
_SHAPE_ELEMENT_TYPE, _SHAPE_DIMENSIONS, _SHAPE_TUPLE, _SHAPE_LAYOUT = 2, 3, 4, 5
_LAYOUT_MINOR_TO_MAJOR, _LAYOUT_TILES, _TILE_DIMENSIONS = 1, 6, 1
_LAYOUT_ELEMENT_BITS, _LAYOUT_MEMORY_SPACE = 7, 8

# xla.PrimitiveType: bits of an element; any other type (tuples, tokens) has none.
_BITS = {
    **dict.fromkeys((30, 31), 1),  # s1, u1
    **dict.fromkeys((26, 27), 2),
    **dict.fromkeys((21, 22, 32), 4),
    **dict.fromkeys((1, 2, 6, 19, 20, 23, 24, 25, 28, 29, 33), 8),
    **dict.fromkeys((3, 7, 10, 16), 16),
    **dict.fromkeys((4, 8, 11), 32),
    **dict.fromkeys((5, 9, 12, 15), 64),
    18: 128,
}
_FLOATS = frozenset((10, 11, 12, 16, *range(19, 21), *range(23, 26), 28, 29, 32, 33))
_TUPLE, _BF16 = 13, 16
_MAIN_MEMORY = 0

Order = tuple[int, ...]
"""Dimensions of an array, the outermost in memory first."""

Index = tuple[int, ...]


def leaves(shape: bytes, index: Index = ()) -> Iterator[tuple[Index, bytes]]:
    """The arrays in a shape, by shape index."""
    elements = [value for field, value in fields(shape) if field == _SHAPE_TUPLE]
    if not is_tuple_shape(shape):
        yield index, shape
    for i, element in enumerate(elements):
        yield from leaves(element, (*index, i))


def is_tuple_shape(shape: bytes) -> bool:
    """Whether its buffers are a table of addresses and the elements."""
    return any(
        field == _SHAPE_TUPLE or (field == _SHAPE_ELEMENT_TYPE and value == _TUPLE)
        for field, value in fields(shape)
    )


def dimension_orders(shape: bytes) -> list[tuple[int, ...]]:
    """The dimensions of every array in a shape, outermost in memory first."""
    orders = []
    for _, array in leaves(shape):
        layout = b"".join(v for field, v in fields(array) if field == _SHAPE_LAYOUT)
        orders.append(tuple(reversed(repeated(layout, _LAYOUT_MINOR_TO_MAJOR))))
    return orders


def dimensions_of(array: bytes) -> tuple[int, ...]:
    """The dimensions of an array."""
    found = (integers(v) for field, v in fields(array) if field == _SHAPE_DIMENSIONS)
    return tuple(itertools.chain.from_iterable(found))


def num_elements(shape: bytes) -> int:
    """Elements of all arrays in a shape."""
    return sum(math.prod(dimensions_of(array)) for _, array in leaves(shape))


def element_bits(shape: bytes) -> int:
    """Bits of an element of the first array in a shape."""
    return _BITS.get(_element_type(shape), 0)


def is_float(shape: bytes) -> bool:
    """Whether the elements of the first array in a shape are floats."""
    return _element_type(shape) in _FLOATS


def _element_type(shape: bytes) -> int:
    _, array = next(leaves(shape))
    kinds = [value for field, value in fields(array) if field == _SHAPE_ELEMENT_TYPE]
    return kinds[-1] if kinds else 0


def sizes_of(shape: bytes) -> tuple[int, int, tuple[int, ...]]:
    """Bytes of an array: in main memory, in other memory such as VMEM, and in the program.

    Either of the first two is 0. The third is a tuple, the likeliest first: a bfloat16
    array may hold a float32 value.
    """
    kind, dimensions, layout = 0, [], b""
    for field, value in fields(shape):
        if field == _SHAPE_ELEMENT_TYPE:
            kind = value
        elif field == _SHAPE_DIMENSIONS:
            dimensions += integers(value)
        elif field == _SHAPE_LAYOUT:
            layout = value
    bits, space, order, tiles = _BITS.get(kind, 0), _MAIN_MEMORY, [], []
    value_bytes = math.prod(dimensions) * max(bits, 8 if bits else 0) // 8
    for field, value in fields(layout):
        if field == _LAYOUT_MINOR_TO_MAJOR:
            order += integers(value)
        elif field == _LAYOUT_TILES:
            tiles.append(repeated(value, _TILE_DIMENSIONS))
        elif field == _LAYOUT_ELEMENT_BITS:
            bits = value or bits
        elif field == _LAYOUT_MEMORY_SPACE:
            space = value
    physical = [dimensions[i] for i in reversed(order)] if order else dimensions
    stored = (math.prod(tiled(physical, tiles)) * bits + 7) // 8
    sizes = (value_bytes, 2 * value_bytes) if kind == _BF16 else (value_bytes,)
    return (stored, 0, sizes) if space == _MAIN_MEMORY else (0, stored, sizes)


def tiled(dimensions: list[int], tiles: list[list[int]]) -> list[int]:
    """Dimensions, major first, padded to whole tiles.

    A tile splits the last dimensions; the next one splits the result of the first.
    """
    for tile in tiles:
        padded = [1] * max(0, len(tile) - len(dimensions)) + dimensions
        split = len(padded) - len(tile)
        counts = [-(-n // t) for n, t in zip(padded[split:], tile, strict=True)]
        dimensions = [*padded[:split], *counts, *tile]
    return dimensions
