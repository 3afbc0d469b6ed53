import { type TSchema, t } from "elysia";

export const count = (description: string) => t.Number({ minimum: 0, multipleOf: 1, description });
export const bytes = (description: string) => count(`${description}, bytes`);
export const seconds = (description: string) =>
  t.Number({ minimum: 0, description: `${description}, seconds` });

/** Schema of 32 bytes in hex. */
export const hex32 = (description: string) => t.String({ pattern: "^[0-9a-f]{64}$", description });

/**
 * Schema of one word of a list. Needed because the framework loses the type of a list that is
 * computed.
 */
export const oneOf = <const Word extends string>(words: readonly Word[], description?: string) =>
  t.Unsafe<Word>(
    t.Union(
      words.map((word) => t.Literal(word)),
      description === undefined ? {} : { description },
    ),
  );

/**
 * Schema of a value or null, as in JSON Schema. The framework's own version uses the syntax of
 * OpenAPI 3.0.
 */
export const nullable = <T extends TSchema>(schema: T, description?: string) =>
  t.Union([schema, t.Null()], description === undefined ? {} : { description });

const LIMIT_MAX = 1_000;

/** Schema of the query parameter `limit`: the maximum entries of a page. */
export const limitQuery = (description: string) =>
  t.Optional(
    t.Numeric({ minimum: 1, maximum: LIMIT_MAX, multipleOf: 1, default: 100, description }),
  );

/** Schema of the query parameter `after`: the number of the last entry of the previous page. */
export const afterQuery = (description: string) =>
  t.Optional(
    t.Numeric({
      minimum: 0,
      maximum: Number.MAX_SAFE_INTEGER,
      multipleOf: 1,
      default: 0,
      description,
    }),
  );

/** Schema of the number to pass as `after` for the next page. */
export const nextNumber = nullable(count("`after` of the next page; null: no more entries"));

type Snake<Name extends string> = Name extends `${infer First}${infer Rest}`
  ? `${First extends Lowercase<First> ? First : `_${Lowercase<First>}`}${Snake<Rest>}`
  : "";

/**
 * Returns the object with its member names in the form used in JSON: `usedBytes` as `used_bytes`.
 */
export function snakeCase<Given extends object>(
  value: Given,
): { [Name in keyof Given & string as Snake<Name>]: Given[Name] } {
  const members = Object.entries(value).map(([name, member]) => {
    return [name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`), member];
  });
  return Object.fromEntries(members);
}
