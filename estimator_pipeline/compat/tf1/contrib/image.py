"""`tf.contrib.image`: projective transformations of images."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = [
    "angles_to_projective_transforms",
    "compose_transforms",
    "flat_transforms_to_matrices",
    "matrices_to_flat_transforms",
    "rotate",
    "transform",
    "translate",
    "translations_to_projective_transforms",
]

_v1: Any = tf.compat.v1


def transform(
    images: Any, transforms: Any, interpolation: str = "NEAREST", output_shape: Any = None, name: str | None = None
) -> Any:
    """Apply projective transformations to images.

    Args:
        images: [batch, rows, columns, channels], [rows, columns, channels] or [rows, columns].
        transforms: [8] or [batch, 8]: (a0, a1, a2, b0, b1, b2, c0, c1) maps the output point (x, y) to the input point
            ((a0 x + a1 y + a2) / k, (b0 x + b1 y + b2) / k), where k = c0 x + c1 y + 1.
        interpolation: "NEAREST" or "BILINEAR".
        output_shape: (rows, columns) of the output; default: those of the input.
        name: The name of the operation.

    Returns:
        Images of the same rank; 0 outside of the input.

    Raises:
        TypeError: The images have a different rank.
    """
    images = tf.convert_to_tensor(images)
    rank = images.shape.ndims
    if rank not in (2, 3, 4):
        raise TypeError(f"Images should have rank between 2 and 4. Got {images.shape}")
    whole = images[tf.newaxis, :, :, tf.newaxis] if rank == 2 else images[tf.newaxis] if rank == 3 else images
    transforms = tf.convert_to_tensor(transforms, tf.float32)
    if transforms.shape.ndims == 1:
        transforms = transforms[tf.newaxis]
    transformed = tf.raw_ops.ImageProjectiveTransformV2(
        images=whole,
        transforms=transforms,
        output_shape=tf.shape(whole)[1:3] if output_shape is None else tf.cast(output_shape, tf.int32),
        interpolation=interpolation.upper(),
        name=name,
    )
    if output_shape is None:
        transformed.set_shape(whole.shape)
    return transformed[0, :, :, 0] if rank == 2 else transformed[0] if rank == 3 else transformed


def rotate(images: Any, angles: Any, interpolation: str = "NEAREST", name: str | None = None) -> Any:
    """Rotate images counterclockwise around their centers by `angles` in radians, a scalar or [batch]."""
    images = tf.convert_to_tensor(images)
    # [rows, columns], [rows, columns, channels] or a batch of the latter.
    first = 1 if images.shape.ndims == 4 else 0
    rows, columns = (tf.cast(tf.shape(images)[first + axis], tf.float32) for axis in (0, 1))
    return transform(images, angles_to_projective_transforms(angles, rows, columns), interpolation, name=name)


def translate(images: Any, translations: Any, interpolation: str = "NEAREST", name: str | None = None) -> Any:
    """Translate images by `translations`, (dx, dy) or [batch, 2]."""
    return transform(images, translations_to_projective_transforms(translations), interpolation, name=name)


def angles_to_projective_transforms(angles: Any, image_height: Any, image_width: Any, name: str | None = None) -> Any:
    """Return the transformations, [batch, 8], that rotate images around their centers."""
    angles = tf.reshape(tf.cast(angles, tf.float32), [-1])
    width, height = tf.cast(image_width, tf.float32) - 1, tf.cast(image_height, tf.float32) - 1
    cos, sin, zeros = tf.cos(angles), tf.sin(angles), tf.zeros_like(angles)
    x = (width - (cos * width - sin * height)) / 2
    y = (height - (sin * width + cos * height)) / 2
    return tf.stack([cos, -sin, x, sin, cos, y, zeros, zeros], axis=1)


def translations_to_projective_transforms(translations: Any, name: str | None = None) -> Any:
    """Return the transformations, [batch, 8], that translate images by (dx, dy)."""
    moves = tf.reshape(tf.cast(translations, tf.float32), [-1, 2])
    zeros = tf.zeros_like(moves[:, 0])
    return tf.stack([zeros + 1, zeros, -moves[:, 0], zeros, zeros + 1, -moves[:, 1], zeros, zeros], axis=1)


def flat_transforms_to_matrices(transforms: Any) -> Any:
    """Convert transformations, [batch, 8] or [8], to matrices, [batch, 3, 3]."""
    flat = tf.reshape(tf.convert_to_tensor(transforms), [-1, 8])
    return tf.reshape(tf.concat([flat, tf.ones_like(flat[:, :1])], axis=1), [-1, 3, 3])


def matrices_to_flat_transforms(transform_matrices: Any) -> Any:
    """Convert matrices, [batch, 3, 3] or [3, 3], to transformations, [batch, 8]."""
    flat = tf.reshape(tf.convert_to_tensor(transform_matrices), [-1, 9])
    return (flat / flat[:, 8:])[:, :8]


def compose_transforms(*transforms: Any) -> Any:
    """Compose transformations into one, [batch, 8]."""
    composed = flat_transforms_to_matrices(transforms[0])
    for each in transforms[1:]:
        composed = tf.matmul(composed, flat_transforms_to_matrices(each))
    return matrices_to_flat_transforms(composed)
