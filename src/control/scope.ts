import type { Sender } from "./command.ts";

/** No name of an account or issuer has it. */
const BETWEEN = "\x01";
/** No name of a token begins so: it has a blank. */
const PROVEN = "issuer ";

/**
 * Whose ids, epochs and numbers a command's are: those of its issuer, and of the account that sent
 * it if the transport knows one. So no sender can take the ids of another account, or fence it, by
 * claiming its name.
 */
export function scopeOf({ account }: Pick<Sender, "account">, issuer: string): string {
  return account === undefined ? issuer : `${account}${BETWEEN}${issuer}`;
}

/** The account of an issuer that has proved its name, whatever its proof. */
export function issuerAccount(issuer: string): string {
  return `${PROVEN}${issuer}`;
}

/** Whether the scope is that of an account, which no other sender can take. */
export function isOfAccount(scope: string): boolean {
  return scope.includes(BETWEEN);
}

/** Whether the scope is that of an issuer that has proved its name. */
export function isProven(scope: string): boolean {
  return scope.startsWith(PROVEN) && isOfAccount(scope);
}

/** Without its account. */
export function issuerOf(scope: string): string {
  return scope.slice(scope.lastIndexOf(BETWEEN) + 1);
}
