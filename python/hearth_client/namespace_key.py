"""The key of a namespace: each block gets a MAC, and no block without the right one is used."""

from __future__ import annotations

import os
import stat
from array import array
from copy import copy
from dataclasses import replace
from struct import pack
from typing import Optional

from .layout import DIGEST_BYTES, LAYER_ALL, MAC_BYTES
from .manifest import Manifest
from .native import NATIVE

#: The manifest's entry that says that a namespace has a key, and which.
MAC_FIELD = "hearth.mac"
_SECRET_BYTES_MIN, _SECRET_BYTES_MAX = 16, 4096


class NamespaceKey:
    """Made from a secret of 16 to 4096 bytes. Two clients share blocks if their secrets are equal.

    The agent need not have the secret: it stores the MACs, and each client verifies its copies.
    """

    def __init__(self, secret: bytes) -> None:
        """ValueError: the secret is too short or too long, or the native library is missing."""
        if not _SECRET_BYTES_MIN <= len(secret) <= _SECRET_BYTES_MAX:
            raise ValueError(
                f"a namespace key of {len(secret)} bytes: use {_SECRET_BYTES_MIN} to "
                f"{_SECRET_BYTES_MAX}, as in `openssl rand -hex 32`"
            )
        if NATIVE is None:
            raise ValueError(
                "a namespace key needs the native library (libhearth_client.so), which is not "
                "here: install the wheel of hearth-client for this platform"
            )
        derived = NATIVE.mac_key(secret)
        #: 16 bytes.
        self.key = derived[:MAC_BYTES]
        #: Names the key in manifests and says nothing else of it.
        self.id = derived[MAC_BYTES:].hex()

    @classmethod
    def from_file(cls, path: str) -> "NamespaceKey":
        """The secret is the file without newlines at its end. ValueError names what to change."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ValueError(f"namespace key {path} cannot be read: {error.strerror}") from None
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise ValueError(f"namespace key {path} is not a regular file")
            if mode & 0o077:
                raise ValueError(
                    f"namespace key {path} has mode {mode & 0o777:o}, expected 600: run "
                    f'"chmod 600 {path}"'
                )
            secret = os.read(descriptor, _SECRET_BYTES_MAX + 2).rstrip(b"\n")
        finally:
            os.close(descriptor)
        try:
            return cls(secret)
        except ValueError as error:
            raise ValueError(f"namespace key {path}: {error}") from None

    @classmethod
    def from_settings(
        cls, key_file: Optional[str], tenant_salt: Optional[str], is_salt_secret: bool
    ) -> "Optional[NamespaceKey]":
        """The key that a connector's settings require. ValueError: they cannot be satisfied."""
        if key_file and is_salt_secret:
            raise ValueError("set key_file or tenant_salt_secret, not both")
        if key_file:
            return cls.from_file(key_file)
        if not is_salt_secret:
            return None
        if not tenant_salt:
            raise ValueError("tenant_salt_secret is set, but tenant_salt is not")
        return cls(tenant_salt.encode("utf-8"))

    def applied(self, manifest: Manifest) -> Manifest:
        """The manifest of the namespace that has this key: another one than without it."""
        return replace(manifest, extra={**manifest.extra, MAC_FIELD: self.id})


class Macs:
    """The MACs of the blocks of one call, for the native library."""

    def __init__(
        self,
        key: NamespaceKey,
        digests: bytes,
        macs: Optional[bytes] = None,
        layer: int = LAYER_ALL,
    ) -> None:
        """``digests``: one behind the other. Without ``macs`` the call computes them."""
        count = len(digests) // DIGEST_BYTES
        self._key = array("B", key.key)
        self._digests = array("B", digests)
        self._macs = array("B", bytes(MAC_BYTES * count) if macs is None else macs)
        if len(self._macs) != MAC_BYTES * count or len(digests) % DIGEST_BYTES:
            raise ValueError(f"{len(self._macs)} bytes of MACs for {count} blocks")
        self._layer = layer
        self._pack(0)

    def _pack(self, first: int) -> None:
        key, digests, macs = (
            one.buffer_info()[0] for one in (self._key, self._digests, self._macs)
        )
        places = (key, digests + DIGEST_BYTES * first, macs + MAC_BYTES * first)
        self._packed = array("B", pack("<QQQII", *places, self._layer, 0))
        #: Address of the structure that the library reads; valid while this object exists.
        self.address = self._packed.buffer_info()[0]

    def behind(self, first: int) -> "Macs":
        """The same MACs, in the same memory, from block ``first`` on."""
        some = copy(self)
        some._pack(first)
        return some

    def packed(self) -> bytes:
        """The MACs, 16 bytes each."""
        return self._macs.tobytes()
