import type { Hashing } from "./hashing.ts";
import type { NamespaceManifest } from "./manifest.ts";

/** Part of the formats: `zig/client/calls.zig` has the same texts. */
const KEY_CONTEXT = "hearth 2026-11 block mac key v1";
const ID_CONTEXT = "hearth 2026-11 block mac key id v1";
/** The manifest's entry in `extra` that says that a namespace has a key, and which. */
export const MAC_FIELD = "hearth.mac";
const KEY_BYTES = 16;
const ID = /^[0-9a-f]{32}$/;

export const SECRET_BYTES_MIN = 16;
export const SECRET_BYTES_MAX = 4096;

/** What follows from the secret of a namespace. */
export interface NamespaceSecret {
  /** 16 bytes, for `BlockMacs`. */
  readonly key: Uint8Array;
  /** 32 hexadecimal digits that name the key and say nothing else of it. */
  readonly id: string;
}

/** Key and identifier of a secret of 16 to 4096 bytes. */
export function namespaceSecret(hashing: Hashing, secret: Uint8Array): NamespaceSecret {
  const key = hashing.blake3DeriveKey(KEY_CONTEXT, secret).slice(0, KEY_BYTES);
  const id = hashing.blake3DeriveKey(ID_CONTEXT, secret).slice(0, KEY_BYTES).toHex();
  return { key, id };
}

/** The manifest of the namespace that has this key: another one than without it. */
export function withMacKey(manifest: NamespaceManifest, id: string): NamespaceManifest {
  return { ...manifest, extra: { ...manifest.extra, [MAC_FIELD]: id } };
}

/** Identifier of the key of this namespace, whose blocks have MACs; null: it has none. */
export function macKeyIdOf({ extra }: NamespaceManifest): string | null {
  const id = extra[MAC_FIELD];
  return id === undefined ? null : id;
}

/** Whether a text is the identifier of a key. */
export function isMacKeyId(text: string): boolean {
  return ID.test(text);
}
