/** SHA-256 of the parts, one after another: 32 bytes. */
export function sha256(...parts: readonly Uint8Array[]): Uint8Array {
  const hasher = new Bun.CryptoHasher("sha256");
  for (const part of parts) hasher.update(part);
  return new Uint8Array(hasher.digest());
}
