import { ExactJson, isDeeper, mayHaveLongIntegers } from "./exact-json.ts";

/** JSON in which 64-bit integers survive both ways. */

export type Json = null | boolean | number | bigint | string | Json[] | { [key: string]: Json };

/** Beyond, whoever walks through what was parsed might not come back. */
const DEPTH_MAX = 1_000;

/** The text may be JSON; it was not looked at. */
export class JsonTooDeep extends SyntaxError {}

/**
 * Parses JSON. An integer that a double cannot hold exactly comes back as `bigint`, every other
 * number as `number`. Throws SyntaxError where the text is not JSON, an integer has over 400
 * digits, or lists and objects lie over `depthMax` deep in each other (JsonTooDeep).
 */
export function parseJson(text: string, depthMax = DEPTH_MAX): Json {
  if (isDeeper(text, depthMax)) throw new JsonTooDeep("nested too deeply");
  return mayHaveLongIntegers(text) ? new ExactJson(text).read() : (JSON.parse(text) as Json);
}

declare global {
  interface JSON {
    /** ECMAScript "JSON.parse source text access"; missing from the bundled types. */
    rawJSON(text: string): unknown;
  }
}

/** Writes JSON with every `bigint` as a plain integer, digit for digit. */
export function stringifyJson(value: unknown, indent?: number): string {
  return JSON.stringify(
    value,
    (_key, item) => (typeof item === "bigint" ? JSON.rawJSON(item.toString()) : item),
    indent,
  );
}
