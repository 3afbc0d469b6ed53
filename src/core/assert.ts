import { HearthError } from "./errors.ts";

/**
 * States an invariant. Stays on in the shipped executable: a broken one is a bug, never an input.
 */
export function assert(condition: unknown, what: string): asserts condition {
  if (!condition) throw new HearthError("INTERNAL", `invariant broken: ${what}`);
}

/** Closes a switch over a union at compile time, and says what came at run time. */
export function unreachable(value: never, what: string): never {
  throw new HearthError("INTERNAL", `${what}: no case for ${String(value)}`);
}
