import { createPrivateKey, createPublicKey, type KeyObject, sign, verify } from "node:crypto";

/**
 * NATS keys (nkeys): ed25519 keys in base32 with a prefix and a checksum. This module uses the
 * runtime's own cryptography, because the client libraries take 10 to 150 ms per signature and
 * block the event loop meanwhile.
 */

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const SEED_PREFIX = 18 << 3;
const USER_PREFIX = 20 << 3;
/** Bytes of a decoded seed: two of prefix, 32 of key, two of checksum. */
const SEED_BYTES = 2 + 32 + 2;
/** Bytes before a 32-byte private key in PKCS #8 format (RFC 8410). */
const PKCS8 = Buffer.from("302e020100300506032b657004220420", "hex");
/** Bytes before a 32-byte public key in SubjectPublicKeyInfo format (RFC 8410). */
const SPKI = Buffer.from("302a300506032b6570032100", "hex");
/** Bytes of a decoded public key: one of prefix, 32 of key, two of checksum. */
const PUBLIC_BYTES = 1 + 32 + 2;
const PUBLIC_CHARACTERS = 56;
const SIGNATURE_BYTES = 64;

export interface NkeyUser {
  /** Public key as text (`U...`), by which the server identifies the user. */
  readonly publicKey: string;
  /** Signs a message. Returns the Ed25519 signature in base64url. */
  sign(message: string | Uint8Array): string;
}

/** The public key of a user. */
export interface NkeyPublic {
  /** The key as text (`U...`). */
  readonly text: string;
  /**
   * Returns true if `signature` (base64url) is a signature of `message` by this key. Never throws.
   */
  verify(message: Uint8Array, signature: string): boolean;
}

/** Returns the key of a seed. Null if the text is not the seed of a user key. */
export function userOfSeed(seed: string): NkeyUser | null {
  const bytes = fromBase32(seed);
  if (bytes === null || bytes.length !== SEED_BYTES) return null;
  const body = bytes.subarray(0, SEED_BYTES - 2);
  if (bytes.readUInt16LE(SEED_BYTES - 2) !== crc16(body)) return null;
  const kind = ((bytes[0] & 7) << 5) | (bytes[1] >> 3);
  if ((bytes[0] & 0xf8) !== SEED_PREFIX || kind !== USER_PREFIX) return null;
  const der = Buffer.concat([PKCS8, body.subarray(2)]);
  const key = createPrivateKey({ key: der, format: "der", type: "pkcs8" });
  return {
    publicKey: publicKeyOf(key),
    sign(message) {
      const bytes = typeof message === "string" ? Buffer.from(message) : message;
      return sign(null, bytes, key).toString("base64url");
    },
  };
}

/** Returns a public key. Null if the text is not the public key of a user (`U...`). */
export function publicUserKey(text: string): NkeyPublic | null {
  if (text.length !== PUBLIC_CHARACTERS) return null;
  const bytes = fromBase32(text);
  if (bytes === null || bytes.length !== PUBLIC_BYTES || bytes[0] !== USER_PREFIX) return null;
  const body = bytes.subarray(0, PUBLIC_BYTES - 2);
  if (bytes.readUInt16LE(PUBLIC_BYTES - 2) !== crc16(body)) return null;
  const der = Buffer.concat([SPKI, body.subarray(1)]);
  const key = createPublicKey({ key: der, format: "der", type: "spki" });
  return {
    text,
    verify(message, signature) {
      const given = Buffer.from(signature, "base64url");
      // Accept only the canonical base64url spelling, so that each signature has only one text
      // form.
      if (given.length !== SIGNATURE_BYTES || given.toString("base64url") !== signature) {
        return false;
      }
      return verify(null, message, key, given);
    },
  };
}

function publicKeyOf(key: KeyObject): string {
  const raw = createPublicKey(key).export({ format: "der", type: "spki" }).subarray(-32);
  const body = Buffer.concat([Buffer.of(USER_PREFIX), raw]);
  const checksum = Buffer.alloc(2);
  checksum.writeUInt16LE(crc16(body));
  return toBase32(Buffer.concat([body, checksum]));
}

/** Returns the CRC-16/XMODEM checksum of the bytes. */
function crc16(bytes: Uint8Array): number {
  let crc = 0;
  for (const byte of bytes) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) {
      crc = crc & 0x8000 ? ((crc << 1) ^ 0x1021) & 0xffff : (crc << 1) & 0xffff;
    }
  }
  return crc;
}

function toBase32(bytes: Uint8Array): string {
  let text = "";
  let held = 0;
  let bits = 0;
  for (const byte of bytes) {
    held = (held << 8) | byte;
    bits += 8;
    while (bits >= 5) {
      bits -= 5;
      text += ALPHABET[(held >> bits) & 31];
    }
    held &= (1 << bits) - 1;
  }
  return bits === 0 ? text : text + ALPHABET[(held << (5 - bits)) & 31];
}

function fromBase32(text: string): Buffer | null {
  const bytes: number[] = [];
  let held = 0;
  let bits = 0;
  for (const character of text) {
    const value = ALPHABET.indexOf(character);
    if (value === -1) return null;
    held = (held << 5) | value;
    bits += 5;
    if (bits >= 8) {
      bits -= 8;
      bytes.push((held >> bits) & 255);
    }
    held &= (1 << bits) - 1;
  }
  return Buffer.from(bytes);
}
