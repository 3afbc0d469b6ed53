import type { Sender } from "./command.ts";

/** No name of an account or issuer has it. */
const BETWEEN = "\x01";

/**
 * Whose ids, epochs and numbers a command's are: those of its issuer, and of the account that sent
 * it where the transport knows one. So nobody who shows a token can take the ids of another, or
 * fence it, by claiming its name.
 */
export function scopeOf({ account }: Pick<Sender, "account">, issuer: string): string {
  return account === undefined ? issuer : `${account}${BETWEEN}${issuer}`;
}
