import { timingSafeEqual } from "node:crypto";
import type { Role } from "../control/index.ts";
import type { TokenEntry } from "./token-files.ts";

/** For whom a token speaks. */
export interface TokenHolder {
  readonly name: string;
  readonly role: Role;
}

interface Known extends TokenHolder {
  readonly digest: Uint8Array;
}

type Compare = (a: Uint8Array, b: Uint8Array) => boolean;

/** The tokens that are good now. Kept as digests. */
export class Tokens {
  readonly #isEqual: Compare;
  #known: readonly Known[] = [];

  constructor(entries: readonly TokenEntry[], isEqual: Compare = timingSafeEqual) {
    this.#isEqual = isEqual;
    this.replace(entries);
  }

  /** From now on these and no others. */
  replace(entries: readonly TokenEntry[]): void {
    this.#known = entries.map(({ name, role, token }) => ({ name, role, digest: digestOf(token) }));
  }

  /**
   * Whose token an `Authorization` header carries; null: nobody's. Digests of equal length are
   * compared in constant time, and with every token, so that the answer's delay tells neither how
   * much of a token was right, nor its length, nor whose it is.
   */
  find(header: string | null): TokenHolder | null {
    const match = /^Bearer +(\S+)$/i.exec(header ?? "");
    const given = digestOf(match?.[1] ?? "");
    let found: Known | null = null;
    for (const known of this.#known) found = this.#isEqual(given, known.digest) ? known : found;
    return found === null ? null : { name: found.name, role: found.role };
  }
}

function digestOf(text: string): Uint8Array {
  return new Bun.CryptoHasher("sha256").update(text).digest();
}
