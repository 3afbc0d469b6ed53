import { HearthError } from "../../../core/index.ts";
import { type Dict, readJson, type Value } from "./python/index.ts";

/** A request's members, and its messages as they were sent. */
export interface ChatBody {
  readonly fields: Dict;
  readonly messages: readonly Dict[];
}

/** Throws UNSUPPORTED where engines refuse it too. */
export function parseChat(text: string): ChatBody {
  let fields: Value;
  try {
    fields = readJson(text);
  } catch (cause) {
    throw refusal("the body is not JSON", { cause });
  }
  const messages = fields instanceof Map ? fields.get("messages") : null;
  if (!(fields instanceof Map && Array.isArray(messages)) || messages.length === 0) {
    throw refusal("messages is not a list with at least one message");
  }
  return { fields, messages: messages.map(dictOf) };
}

function dictOf(value: Value): Dict {
  if (value instanceof Map) return value;
  throw refusal("a message is not an object");
}

export function refusal(why: string, options: ErrorOptions = {}): HearthError {
  return new HearthError("UNSUPPORTED", why, options);
}

export function dict(...members: readonly (readonly [string, Value])[]): Dict {
  return new Map<Value, Value>(members);
}

/** A member that is absent, or null, is null. */
export function member(of: Dict, key: string): Value {
  return of.get(key) ?? null;
}

const TRUE: ReadonlySet<unknown> = new Set([1, "1", "true", "t", "yes", "y", "on"]);
const FALSE: ReadonlySet<unknown> = new Set([0, "0", "false", "f", "no", "n", "off"]);

/** A member that must be a boolean where it is there; also in the other forms that vLLM takes. */
export function boolean(of: Dict, key: string, otherwise: boolean): boolean {
  const value = of.get(key);
  if (value === undefined) return otherwise;
  if (typeof value === "boolean") return value;
  const plain = typeof value === "string" ? value.toLowerCase() : Number(value ?? Number.NaN);
  if (TRUE.has(plain)) return true;
  if (FALSE.has(plain)) return false;
  throw refusal(`${key} is not a boolean`);
}
