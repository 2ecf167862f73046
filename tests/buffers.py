"""What the buffer of a view holds, read as a browser reads it."""

import json
import struct

import numpy as np
from safetensors.numpy import load


def words_of(data):
    """What a buffer says beside its tensors."""
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["view"])


def unpacked(data, name, part=""):
    """A map of a buffer, with NaN where no query sees the key."""
    tensors, about = load(data), words_of(data)
    shape = about["detail"]["shape"] if part else about["shape"]
    seen = np.unpackbits(tensors[f"{part}visible"], count=shape[0] * shape[1]).astype(bool)
    values = np.full(len(seen), np.nan)
    values[seen] = tensors[part + name].astype(float) * about["unit"]
    return values.reshape(shape)
