import { timingSafeEqual } from "node:crypto";
import { open } from "node:fs/promises";
import { HearthError, messageOf } from "../core/index.ts";

const FILE_BYTES_MAX = 4096;
const TOKEN_CHARACTERS_MIN = 16;
/** RFC 6750, section 2.1. */
const TOKEN = /^[A-Za-z0-9._~+/-]+=*$/;

/** The first line of the file. Throws CONFIG_INVALID where it is no token worth the name. */
export async function readTokenFile(path: string): Promise<string> {
  const text = await firstBytes(path);
  const token = text.split("\n", 1)[0]!.trim();
  if (token.length >= TOKEN_CHARACTERS_MIN && TOKEN.test(token)) return token;
  const what = `the first line of ${path} is no bearer token`;
  throw new HearthError("CONFIG_INVALID", what, {
    fix: `write at least ${TOKEN_CHARACTERS_MIN} letters, digits or ._~+/- into it`,
  });
}

async function firstBytes(path: string): Promise<string> {
  try {
    await using file = await open(path, "r");
    const buffer = new Uint8Array(FILE_BYTES_MAX);
    const { bytesRead } = await file.read(buffer, 0, FILE_BYTES_MAX, 0);
    return new TextDecoder().decode(buffer.subarray(0, bytesRead));
  } catch (cause) {
    throw new HearthError("CONFIG_INVALID", `${path} cannot be read: ${messageOf(cause)}`, {
      cause,
      fix: "let api.token_file name a file that the agent's user may read",
    });
  }
}

/**
 * Tells whether an `Authorization` header carries the token. Digests of equal length are compared
 * in constant time, so that the answer's delay tells neither how much of the token was right nor
 * its length.
 */
export function createTokenCheck(token: string): (header: string | null) => boolean {
  const digest = (text: string) => new Bun.CryptoHasher("sha256").update(text).digest();
  const wanted = digest(token);
  return (header) => {
    const match = /^Bearer +(\S+)$/i.exec(header ?? "");
    return timingSafeEqual(digest(match?.[1] ?? ""), wanted);
  };
}
