import type { Json } from "../../../core/index.ts";

export type Fields = Readonly<Record<string, Json>>;

/** The part of a chat completion request that its prompt is made of. */
export type ChatRequest = { readonly messages: Json[] } & Record<string, Json>;

/** A fraction, an exponent, or more digits than a double holds. */
const ODD_NUMBER = /[0-9](?:\.[0-9]|[eE][-+]?[0-9]|[0-9]{15})/;

declare global {
  interface JSON {
    /** ECMAScript "JSON.parse source text access"; missing from the bundled types. */
    parse(
      text: string,
      reviver: (key: string, value: unknown, context: { readonly source?: string }) => unknown,
    ): unknown;
  }
}

/**
 * The members of a body with each number as the client wrote it, to be written again: `1.0` in a
 * tool's schema or arguments is another prompt than `1`.
 */
export function exactFields(text: string, fields: Fields): Fields {
  if (!ODD_NUMBER.test(text)) return fields;
  const parsed = JSON.parse(text, (_key, value, { source }) => {
    const isOther = typeof value === "number" && source !== undefined && source !== `${value}`;
    return isOther ? JSON.rawJSON(source) : value;
  });
  return parsed as Fields;
}

export function isFields(value: Json | undefined): value is { [key: string]: Json } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function textOf(value: Json | undefined): string | null {
  return typeof value === "string" ? value : null;
}

/** A tool as the chat API has it; members that are null are left out, as vLLM does. */
export function toolOf(name: Json, description: Json, parameters: Json, more: Fields): Json {
  const given = Object.entries(more).filter(([, value]) => value !== null);
  const kept = { name, description, parameters, ...Object.fromEntries(given) };
  return { type: "function", function: kept };
}
